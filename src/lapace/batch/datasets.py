"""Counterfactuals for the rows of a `ray.data.Dataset`."""

from __future__ import annotations

import os
from typing import Any

from lapace.batch.engines import Engine, actor_options, ray_data
from lapace.batch.outcomes import Layout, Request, as_instances, make_layout, outcome_rows
from lapace.batch.places import need_pyarrow
from lapace.batch.worker import CHUNK, Bundle, one_thread
from lapace.errors import InputError
from lapace.explainer import Explainer

__all__ = ["explain"]


def explain(
    dataset: Any,
    explainer: Explainer | str | os.PathLike[str],
    *,
    classifier: Any = None,
    workers: int | None = None,
    gpus: float = 0.0,
    **request: Any,
) -> Any:
    """Outcomes for every row of a `ray.data.Dataset`, as another one; lazy, as its methods are.

    Blocks are explained by a pool of actors, each of which loads the explainer once. Rows, statuses
    and reasons do not depend on how the dataset is divided into blocks; figures such as `survival`
    may differ in their last digits. `run` writes files that are the same to the byte.

    Args:
        dataset: The instances.
        explainer: A fitted explainer, or the file of one.
        classifier: A file, module or address, or the classifier itself, where the explainer's file
            does not refer to it.
        workers: Actors; by default one for each core of the cluster.
        gpus: GPUs of each actor.
        request: What is wanted, as the attributes of `Request`: `target`, `constraints`, `picks`…
    """
    asked = Request(**request)
    bundle = Bundle.of(explainer, classifier, device="cuda" if gpus else "cpu")
    types = _types(dataset)
    known = explainer if isinstance(explainer, Explainer) else bundle.load()
    layout = make_layout(asked, known, types, positions=False)
    with ray_data(Engine(workers, gpus)) as ray:
        options = actor_options(ray, Engine(workers, gpus))
        return dataset.map_batches(
            BlockWorker,
            fn_constructor_args=(bundle, layout),
            batch_size=None,
            batch_format="pyarrow",
            **options,
        )


def _types(dataset: Any) -> dict[str, Any]:
    """The types of pyarrow of a dataset's columns."""
    pa = need_pyarrow()
    schema = dataset.schema()
    if schema is None:
        raise InputError("The dataset has no rows.")
    names, kinds = schema.names, schema.types
    if not all(isinstance(kind, pa.DataType) for kind in kinds):  # blocks of pandas
        found = next(iter(dataset.limit(1000).iter_batches(batch_format="pyarrow"))).schema
        names, kinds = found.names, found.types
    return {
        name: kind.value_type if pa.types.is_dictionary(kind) else kind
        for name, kind in zip(names, kinds, strict=True)
    }


class BlockWorker:
    """Explains blocks of a dataset; loads the explainer once."""

    def __init__(self, bundle: Bundle, layout: Layout) -> None:
        self.explainer, self.layout = bundle.load(), layout

    def __call__(self, rows: Any) -> Any:
        """The outcomes of a block's rows."""
        pa = need_pyarrow()
        tables = [self.layout.arrow.empty_table()]
        with one_thread():
            for begin in range(0, len(rows), CHUNK):
                chunk = rows.slice(begin, CHUNK)
                instances = as_instances(self.layout, chunk, begin)
                found = self.layout.request.explain(self.explainer, instances)
                tables.append(outcome_rows(self.layout, found, chunk, "", begin))
        return pa.concat_tables(tables)
