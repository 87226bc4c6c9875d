"""Fit once, explain anyone: the class a user holds in their hands.

`fit` asks the classifier about the training rows, learns an L-GMVAE of them, and has the classifier
judge every centroid. `explain` is a pure function of what was fitted: it walks from instances to the
prototypes of the label they want and returns an `Explanation`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from lapace.classifiers import Classifier
from lapace.constraints import Constraint, Custom, System, fixed, parse_all
from lapace.errors import InputError, NotFittedError
from lapace.explainer import storage
from lapace.explainer.asking import answer
from lapace.explainer.fitting import Fitted, Prototype, judged_again, learn
from lapace.explainer.problem import ANY_OTHER, Question, Search, is_number, whole
from lapace.explainer.reporting import evidence
from lapace.report import Queries, Report, make_report, split
from lapace.result import Counterfactuals, Explanation, InstanceExplanation
from lapace.schema import Feature, Schema
from lapace.table import spelling
from lapace.training import Recipe

__all__ = ["ANY_OTHER", "Explainer", "Prototype", "Search"]

Progress = Callable[[str, int, int], None]
COMMON = ({"0", "1"}, {"false", "true"}, {"no", "yes"}, {"n", "y"})  # also of many a feature
BEYOND_CHANCE = 0.4  # share of what chance leaves to agree on, from which agreement tells
DRAWS = 50  # of a sample that is to be verified, before giving up


class Explainer:
    """Explains what a classifier would need to see.

    Args:
        classifier: Any object with `predict`, or any callable on rows.
        n_prototypes: Prototypes per label; a small label gets fewer.
        n_latent: Dimensions of the latent space; None for a rule.
        recipe: `default`, or `paper` for the paper's own training.
        rules: Constraints that hold for every answer of every call.
        schema: A `Schema`, or overrides for some columns; by default all is inferred.
        device: `cpu`, `cuda`, or None for the best there is.
        random_state: Seed of everything random.

    Examples:
        >>> from lapace import Explainer
        >>> rng = np.random.default_rng(0)
        >>> instances = [{"income": int(i), "debt": int(d)} for i, d in rng.integers(0, 99, (400, 2))]
        >>> bank = lambda rows: ["yes" if r["income"] > r["debt"] else "no" for r in rows]
        >>> explainer = Explainer(bank, n_prototypes=2).fit(instances)
        >>> explainer.explain([{"income": 20, "debt": 60}])
        Explanation of 1 instance: 1 answered; 2 paths
    """

    def __init__(
        self,
        classifier: Any,
        *,
        n_prototypes: int = 5,
        n_latent: int | None = None,
        recipe: Literal["default", "paper"] | Recipe = "default",
        rules: Sequence[str | Constraint] = (),
        schema: Schema | Mapping[str, str | Feature] | None = None,
        device: str | None = None,
        random_state: int = 0,
    ) -> None:
        self.classifier = classifier
        self.n_prototypes = n_prototypes
        self.n_latent = n_latent
        self.recipe = recipe
        self.rules = rules
        self.schema = schema
        self.device = device
        self.random_state = random_state

    def __repr__(self) -> str:
        fitted: Fitted | None = getattr(self, "fitted_", None)
        if fitted is None:
            return f"Explainer(n_prototypes={self.n_prototypes}, random_state={self.random_state}), not fitted yet"
        told = " or ".join(map(str, fitted.labels))
        return f"Explainer of {told}: {len(fitted.prototypes)} prototypes, {self.report_.verdict}"

    # -- fit --------------------------------------------------------------------------------------

    def fit(self, train: Any, *, progress: Progress | None = None) -> Explainer:
        """Learns from a table what the classifier says of instances like these.

        Args:
            train: Features only, in the classifier's own columns.
            progress: Called as `progress("training", done, total)`.
        """
        start = perf_counter()
        clusters = whole("n_prototypes", self.n_prototypes, least=1)
        latent = None if self.n_latent is None else whole("n_latent", self.n_latent, least=1)
        seed = whole("random_state", self.random_state, least=0)
        schema = self.schema
        if not isinstance(schema, Schema):
            schema = Schema.infer(train, schema)
        reading = schema.read(train)
        if reading.problems:
            raise InputError(min(reading.problems.items())[1])
        # Categories too rare to be proposed are in the rows all the same, and have to be named.
        schema, cells = reading.schema, reading.cells
        System.of(self.rules, schema)  # rules that cannot hold are better refused before training
        classifier = Classifier(self.classifier, schema)
        codes = classifier.fit_labels(cells)
        labelled = classifier.n_queries
        for name in _leaks(schema, cells, classifier.labels, codes):
            warnings.warn(
                f"Column '{name}' has exactly the classifier's labels as its values. If it is what "
                "the classifier predicts, leave it out of the table (--label on the command line).",
                stacklevel=2,
            )
        division = split(codes, len(classifier.labels), random_state=seed)
        fitted = learn(
            schema,
            classifier,
            cells[division.train],
            codes[division.train],
            clusters=clusters,
            latent=latent,
            recipe=Recipe.of(self.recipe),
            device=_device(self.device),
            seed=seed,
            progress=progress,
        )
        centroids = len(fitted.prototypes)
        found = evidence(
            fitted,
            classifier,
            cells,
            codes,
            division,
            wanted=clusters,
            rules=self.rules,
            n_queries=Queries(labelled, centroids, classifier.n_queries - labelled - centroids),
            seconds=perf_counter() - start,
            seed=seed,
        )
        self._report = make_report(found)
        self.fitted_ = fitted
        self.classifier_ = classifier
        return self

    @property
    def schema_(self) -> Schema:
        """The columns, as fitted."""
        return self._fitted().schema

    @property
    def classes_(self) -> tuple[Any, ...]:
        """The classifier's labels."""
        return self._fitted().labels

    @property
    def report_(self) -> Report:
        """What was learned, what to distrust, and whether it passes."""
        self._fitted()
        return self._report

    @property
    def prototypes_(self) -> tuple[Prototype, ...]:
        """Every centroid, decoded and judged."""
        return self._fitted().prototypes

    def _fitted(self) -> Fitted:
        fitted: Fitted | None = getattr(self, "fitted_", None)
        if fitted is None:
            raise NotFittedError("This explainer knows nothing yet. Call fit(train) first.")
        return fitted

    # -- explain ----------------------------------------------------------------------------------

    def explain(
        self,
        X: Any,
        *,
        target: Any = None,
        constraints: Sequence[str | Constraint] = (),
        costs: Mapping[str, float] | None = None,
        confidence: float | None = None,
        search: Search | None = None,
        progress: Progress | None = None,
    ) -> Explanation:
        """Finds counterfactuals for every instance of a table.

        Args:
            X: Rows in the training table's columns; other columns are ignored.
            target: The label wanted, one label per instance, or `"any-other"`; with two classes it
                may be left out.
            constraints: What every counterfactual must satisfy, beside the explainer's rules.
            costs: How hard a change is, for some columns: a weight, 1 by default; infinity holds
                the column fixed.
            confidence: The least probability of the target a counterfactual must have.
            search: How to search, where the defaults will not do.
            progress: Called as `progress("explaining", done, total)`.
        """
        fitted = self._fitted()
        search = Search() if search is None else search
        if costs is not None and not isinstance(costs, Mapping):
            raise InputError("costs are given by column, such as {'income': 2.0}.")
        for name, cost in (costs or {}).items():
            if not is_number(cost):
                raise InputError(f"The cost of '{name}' is {cost!r}; it must be a number.")
        held = [fixed(name) for name, cost in (costs or {}).items() if cost == np.inf]
        question = Question(
            target,
            search.steps,
            search.detail == "path",
            search.stable,
            confidence,
            (*_listed(self.rules), *_listed(constraints), *held),
            {name: cost for name, cost in (costs or {}).items() if cost != np.inf},
            search.sparse,
            search.enforce,
            rules=len(_listed(self.rules)),
        )
        return answer(fitted, self.classifier_.with_fresh_count(), X, question, progress)

    def counterfactuals(
        self, instances: Any, *, target: Any = None, pick: str = "nearest"
    ) -> Counterfactuals:
        """The protocol baselines share: `explain`, and one of its picks."""
        if pick not in ("first", "middle", "last", "nearest", "sparse"):
            raise InputError(f"There is no pick '{pick}'.")
        explanation = self.explain(instances, target=target, search=Search(sparse=pick == "sparse"))
        found: Counterfactuals = getattr(explanation, pick)()
        return found

    # -- pictures ---------------------------------------------------------------------------------

    @property
    def history_(self) -> dict[str, NDArray[np.float64]]:
        """The loss and its parts as training went, by name: what `plots.training_curves` draws."""
        fitted = self._fitted()
        return dict(zip(fitted.history_names, fitted.history.T, strict=True))

    def latent_map(
        self, instance: InstanceExplanation | None = None, *, points: int = 400, seed: int = 0
    ) -> dict[str, NDArray[Any]]:
        """Latent space as plain arrays: what `plots.latent_map` draws.

        Args:
            instance: One instance of an explanation, to be placed on the map.
            points: How many latent points to draw for each label.
            seed: Of the draw.

        Returns:
            `labels`; `z` and `label` of the points; `prototype_z`, `prototype_label`,
            `prototype_number` and `prototype_valid`; with an instance `instance_z`. Labels are positions
            among the labels.
        """
        fitted = self._fitted()
        decoder, prototypes = fitted.decoder, fitted.prototypes
        generator = torch.Generator().manual_seed(seed)
        known = [k for k, mixture in enumerate(decoder.mixtures) if len(mixture.means)]
        drawn = [decoder.mixtures[k].sample(points, generator).numpy() for k in known]
        record: dict[str, NDArray[Any]] = {
            "labels": np.array(fitted.labels, dtype=object),
            "z": np.concatenate(drawn),  # (labels * points, h)
            "label": np.repeat(known, points),
            "prototype_z": np.stack([p.z for p in prototypes]),  # (prototypes, h)
            "prototype_label": np.array([p.label for p in prototypes]),
            "prototype_number": np.array([p.number for p in prototypes]),
            "prototype_valid": np.array([p.valid for p in prototypes]),
        }
        if instance is not None:
            answer_, at = instance.explanation, slice(instance.position, instance.position + 1)
            code = np.array([fitted.labels.index(instance.label)])
            start = decoder.start(answer_.schema, answer_.instances[at], code)
            record["instance_z"] = start.z[0].cpu().numpy()  # (h,)
        return record

    # -- save and load ----------------------------------------------------------------------------

    def save(self, path: str | Path, *, classifier: str | PathLike[str] | None = None) -> None:
        """Writes everything but the classifier into one file, whole or not at all.

        Args:
            path: The file; by custom it ends in `.lapace`.
            classifier: The classifier's own file. If it is a skops or ONNX file in the same folder,
                `load` finds it there by itself, as long as it has not changed.
        """
        for rule in _listed(self.rules):
            if isinstance(rule, Custom):
                raise InputError(
                    f"The rule '{rule.name}' is a Python function and cannot be saved. Hand it "
                    "over with each call: explain(..., constraints=[...])."
                )
        settings = {
            "n_prototypes": self.n_prototypes,
            "n_latent": self.n_latent,
            "rules": [str(rule) for rule in _listed(self.rules)],
            "random_state": self.random_state,
        }
        kept = None if classifier is None else storage.reference(path, classifier)
        storage.save(path, self._fitted(), self.report_, settings, kept)

    @classmethod
    def load(
        cls,
        path: str | Path,
        classifier: Any = None,
        *,
        trust: Sequence[str] = (),
        device: str | None = None,
    ) -> Explainer:
        """Reads an explainer and hands the classifier back to it.

        The prototypes are judged again: one the classifier no longer accepts is warned about and
        not walked to.

        Args:
            path: The file.
            classifier: The classifier it was fitted for; None to open the file it refers to.
            trust: Types in that file that may be built, as in `classifiers.load_classifier`.
            device: As in the constructor.
        """
        fitted, report, settings = storage.load(path, _device(device))
        if classifier is None:
            classifier = storage.follow(path, trust)
        explainer = cls(classifier, recipe=fitted.recipe, schema=fitted.schema, **settings)
        explainer.device = device
        explainer.classifier_ = Classifier(classifier, fitted.schema, fitted.labels)
        explainer.fitted_ = judged_again(fitted, explainer.classifier_)
        explainer._report = report
        return explainer

    # -- sample -----------------------------------------------------------------------------------

    def sample(self, label: Any, n: int, *, verified: bool = False, seed: int = 0) -> Any:
        """New, made-up rows of a label, as a table like the training table.

        Args:
            label: The label to draw for.
            n: How many.
            verified: Redraw rows the classifier labels otherwise.
            seed: Of the draw.
        """
        return self.schema_.frame(self._sample(label, n, verified, seed))

    def _sample(self, label: Any, n: int, verified: bool, seed: int) -> np.ndarray[Any, Any]:
        fitted = self._fitted()
        code = self.classifier_.code(label)
        if not fitted.decoder.mixtures[code].means.shape[0]:
            raise InputError(f"Label {label!r} had too few training rows to draw from.")
        if not (isinstance(n, int | np.integer) and n >= 0):
            raise InputError(f"n is {n!r}; it must be a whole number from 0 on.")
        cells = fitted.decoder.sample(code, int(n), seed)
        for again in range(1, DRAWS + 1 if verified else 1):
            wrong = np.flatnonzero(self.classifier_.predict(cells) != code)
            if not len(wrong):
                break
            if again == DRAWS:
                raise InputError(
                    f"After {DRAWS} draws {len(wrong)} of {n} rows are still not labelled "
                    f"{label!r}. Look at the report, or draw with verified=False."
                )
            cells[wrong] = fitted.decoder.sample(code, len(wrong), seed + 7919 * again)
        return cells


def _listed(constraints: Any) -> list[Constraint]:
    """One constraint is a list of one: a text must not be taken for its letters."""
    return list(parse_all(constraints))


def _leaks(
    schema: Schema, cells: NDArray[np.float64], labels: Sequence[Any], codes: NDArray[Any]
) -> list[str]:
    """Columns that look like the label itself, left in the table.

    Their values are the labels, and agree with what the classifier says as well as a fair
    classifier agrees with the truth. Many a feature says yes or no by right: there it takes more.
    """
    names = [spelling(label) for label in labels]
    least = 0.9 if {name.lower() for name in names} in COMMON else 0.75
    found = []
    for i, feature in enumerate(schema.features):
        values = np.unique(cells[:, i])
        if len(values) != len(names) or np.isnan(values).any():
            continue
        held = [
            spelling(feature.levels[int(v)] if feature.categories else float(v)) for v in values
        ]
        if len(names) < 2 or set(held) != set(names):
            continue
        places = np.array([names.index(text) for text in held])
        own = places[np.searchsorted(values, cells[:, i])]
        agreed = float((own == codes).mean())
        count = len(names)
        chance = np.bincount(own, minlength=count) @ np.bincount(codes, minlength=count)
        by_chance = float(chance) / len(codes) ** 2
        # Two rare things agree most of the time without having anything to do with each other.
        if agreed >= least and agreed - by_chance >= BEYOND_CHANCE * (1 - by_chance):
            found.append(feature.name)
    return found


def _device(name: str | None) -> torch.device:
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"There is no device '{name}'. Say cpu or cuda.") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError("There is no CUDA device here. Say device='cpu', or leave it out.")
    return device
