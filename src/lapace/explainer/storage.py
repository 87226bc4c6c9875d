"""One zip that holds a fitted explainer, and nothing that runs.

```
format.json            what this file is, and its version
schema.json            the columns
config.json            labels, recipe, sizes, settings
weights.safetensors    the network, the densities, the category trees, prototypes' latent points,
                       what estimates survival
prototypes.json        the prototypes as they were judged
report.json            the fit report
```

Reading it loads JSON and tensors, never code. The classifier is not in it: the caller passes it, or
it lies beside it as a skops or ONNX file that `config.json` refers to with a hash.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from lapace.categories import CategoryTree
from lapace.classifier import Reference
from lapace.constraints import from_toml, to_toml
from lapace.documents import plain, restore
from lapace.errors import InputError
from lapace.explainer import outer
from lapace.explainer.fit import Fitted, Prototype
from lapace.files import parse_json, unpack, write_whole
from lapace.model import LGMVAE, Mixture, Shape
from lapace.paths import Decoder
from lapace.schema import Schema
from lapace.training import Recipe

__all__ = ["Stored", "load", "read_reference", "save"]

FORMAT, VERSION = "lapace/explainer", 6
MEMBERS = (
    "format.json", "schema.json", "config.json", "weights.safetensors", "prototypes.json",
    "report.json",
)  # fmt: skip
FINITE = ("model.", "mixture.", "prototype.z", "survival.")  # tensors without NaN
MOST_CELLS = 2**23  # of all prototypes together, in any layer of the network
SETTINGS = (
    "n_prototypes",
    "n_latent",
    "random_state",
    "learn_rules",
)  # arguments of `Explainer` kept
PROTOTYPE = ("number", "code", "valid", "members", "valid_before", "note")  # kept as JSON
PROTOTYPE_ARRAYS = ("cells", "probability", "z")  # kept as tensors
DAY = (2020, 1, 1, 0, 0, 0)  # the same explainer is the same file, bit for bit

T = TypeVar("T")
Settings = dict[str, Any]


class Stored(NamedTuple):
    """The content of a file.

    Attributes:
        fitted: What `fit` learned.
        report: The fit report.
        settings: The explainer's arguments, by name.
        reference: A reference to the classifier's file, if one was saved.
        id_column: The column that identified the rows of the training table, if one was named.
    """

    fitted: Fitted
    report: outer.Report
    settings: Settings
    reference: Reference | None
    id_column: str | None


def save(
    path: str | Path,
    fitted: Fitted,
    report: outer.Report,
    settings: Settings,
    classifier: Reference | None = None,
    id_column: str | None = None,
) -> None:
    """Writes the file, whole or not at all.

    Args:
        path: The file; by convention it ends in `.lapace`.
        fitted: What `fit` learned.
        report: The fit report.
        settings: The explainer's arguments, as plain JSON values.
        classifier: A reference to the classifier's file.
        id_column: The column that identified the rows.
    """
    decoder = fitted.decoder
    config = {
        "settings": settings,
        "labels": list(fitted.labels),
        "rules": to_toml(fitted.declared),
        "learned": [rule.to_json() for rule in fitted.learned],
        "recipe": plain(fitted.recipe),
        "shape": plain(decoder.model.shape),
        "history": list(fitted.history_names),
        "trees": len(decoder.trees),
        **({} if classifier is None else {"classifier": classifier.to_json()}),
        **({} if id_column is None else {"id_column": id_column}),
    }
    prototypes = [{name: getattr(p, name) for name in PROTOTYPE} for p in fitted.prototypes]
    members: dict[str, bytes] = {
        "format.json": _json({"format": FORMAT, "version": VERSION}),
        "schema.json": _json(fitted.schema.to_json()),
        "config.json": _json(config),
        "weights.safetensors": save_tensors(_tensors(fitted)),
        "prototypes.json": _json(prototypes),
        "report.json": _json(report.to_json()),
    }
    write_whole(Path(path), lambda temporary: _write_zip(temporary, members))


def _json(data: Any) -> bytes:
    return json.dumps(data, allow_nan=False, indent=1).encode()


def _write_zip(path: Path, members: Mapping[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            entry = zipfile.ZipInfo(name, DAY)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)


def _tensors(fitted: Fitted) -> dict[str, torch.Tensor]:
    decoder = fitted.decoder
    tensors = {f"model.{k}": v.contiguous().cpu() for k, v in decoder.model.state_dict().items()}
    mixtures = {f"mixture.{label}": mixture for label, mixture in enumerate(decoder.mixtures)}
    mixtures |= {f"sampler.{label}": mixture for label, mixture in decoder.samplers.items()}
    for name, mixture in mixtures.items():
        for part in fields(mixture):
            tensors[f"{name}.{part.name}"] = getattr(mixture, part.name).contiguous()
    for label, tree in enumerate(decoder.trees):
        for name, array in tree.to_arrays().items():
            tensors[f"tree.{label}.{name}"] = torch.from_numpy(np.ascontiguousarray(array))
    for name in PROTOTYPE_ARRAYS:
        array = np.stack([np.asarray(getattr(p, name)) for p in fitted.prototypes])
        tensors[f"prototype.{name}"] = torch.from_numpy(array)
    for name, array in fitted.survival.arrays().items():
        tensors[f"survival.{name}"] = torch.from_numpy(np.ascontiguousarray(array))
    tensors["history"] = torch.from_numpy(np.ascontiguousarray(fitted.history))
    return tensors


def load(path: str | Path, device: torch.device) -> Stored:
    """Reads the file back; anything that is not exactly such a file is refused with a sentence."""
    return _read(Path(path), lambda members: _parse(members, device))


def read_reference(path: str | Path) -> Reference | None:
    """Reads only the reference to the classifier's file, if one was saved."""
    return _read(Path(path), lambda members: _reference(parse_json(members, "config.json")))


def _reference(config: Mapping[str, Any]) -> Reference | None:
    reference = config.get("classifier")
    return None if reference is None else Reference.from_json(reference)


def _read(path: Path, parse: Callable[[Mapping[str, bytes]], T]) -> T:
    if path.is_dir():
        raise InputError(f"'{path}' is a folder. Name the file an explainer was saved in.")
    if not path.is_file():
        raise InputError(f"There is no file '{path}'.")
    if _is_table(path):
        raise InputError(
            f"'{path}' is not a saved explainer: it looks like a table. Name the file an "
            "explainer was saved in, as `lapace fit` writes it, such as M.lapace."
        )
    try:
        members = _read_zip(path)
        kind = parse_json(members, "format.json")
        if not isinstance(kind, dict) or kind.get("format") != FORMAT:
            raise InputError(f"'{path}' is not a saved explainer.")
        if kind.get("version") != VERSION:
            raise InputError(
                f"'{path}' is of version {kind.get('version')} and this lapace reads version "
                f"{VERSION}. Use the lapace that wrote it, or fit again."
            )
        return parse(members)
    except InputError:
        raise
    except ModuleNotFoundError as error:
        raise InputError(
            f"'{path}' was fitted from a {error.name} table, and {error.name} is not installed "
            f"here. Install it first: pip install {error.name}"
        ) from None
    except Exception as error:  # a damaged file may trip up any of the libraries that read it
        raise InputError(
            f"'{path}' is not a saved explainer, or it is damaged ({type(error).__name__}). "
            "Save it again."
        ) from error


def _is_table(path: Path) -> bool:
    """A CSV or Parquet file, by its name or by how it begins."""
    if path.suffix.lower() in (".csv", ".parquet"):
        return True
    try:
        with path.open("rb") as file:
            line = file.readline(4096).decode()
    except (OSError, UnicodeDecodeError):
        return False
    return line.startswith("PAR1") or ("," in line and line.rstrip("\r\n").isprintable())


def _read_zip(path: Path) -> dict[str, bytes]:
    members = unpack(path, lambda why: InputError(f"'{path}' is not a saved explainer: {why}."))
    if sorted(members) != sorted(MEMBERS):
        raise InputError(f"'{path}' is not a saved explainer.")
    return members


# ------------------------------------------------------------------------------------------------
# The parts


def _parse(members: Mapping[str, bytes], device: torch.device) -> Stored:
    schema = Schema.from_json(parse_json(members, "schema.json"))
    config = parse_json(members, "config.json")
    tensors = load_tensors(members["weights.safetensors"])
    shape = restore(Shape, config["shape"], "the shape of the model")
    listed = parse_json(members, "prototypes.json")
    model = _model(shape, schema, tensors, len(listed))
    recipe = restore(Recipe, config["recipe"], "the recipe")
    labels = tuple(config["labels"])
    decoder = Decoder(
        schema,
        model.to(device).eval().requires_grad_(False),
        tuple(Mixture(**_under(tensors, f"mixture.{k}.")) for k in range(len(shape.clusters))),
        tuple(_tree(_under(tensors, f"tree.{k}.")) for k in range(config["trees"])),
        follows_paper=recipe.follows_paper,
        samplers={
            k: Mixture(**parts)
            for k in range(len(shape.clusters))
            if (parts := _under(tensors, f"sampler.{k}."))
        },
    )
    arrays = {name: tensors[f"prototype.{name}"].numpy() for name in PROTOTYPE_ARRAYS}
    prototypes = tuple(
        Prototype(
            **{name: data[name] for name in PROTOTYPE},
            label=labels[data["code"]],
            cells=arrays["cells"][i],
            z=arrays["z"][i],
            probability=float(arrays["probability"][i]),
        )
        for i, data in enumerate(listed)
    )
    learned = tuple(map(outer.LearnedRule.from_json, config["learned"]))
    rules = from_toml(config["rules"], "its rules")
    fitted = Fitted(
        schema,
        labels,
        (*rules, *(rule.constraint for rule in learned if rule.constraint is not None)),
        decoder,
        prototypes,
        recipe,
        tensors["history"].double().numpy().reshape(-1, len(config["history"])),
        tuple(config["history"]),
        outer.Survival.of_arrays(
            labels,
            {name: value.numpy() for name, value in _under(tensors, "survival.").items()},
        ),
        learned,
    )
    report = outer.Report.from_json(parse_json(members, "report.json"))
    _try_out(fitted, report)
    settings = {name: config["settings"][name] for name in SETTINGS}
    id_column = config.get("id_column")
    id_column = id_column if isinstance(id_column, str) else None
    return Stored(fitted, report, settings, _reference(config), id_column)


def _model(
    shape: Shape, schema: Schema, tensors: Mapping[str, torch.Tensor], prototypes: int
) -> LGMVAE:
    """Returns the network; a shape that does not fit columns and weights is refused before."""
    widest = max(shape.columns, shape.hidden, shape.latent, sum(shape.clusters))
    if (shape.continuous, shape.widths) != (len(schema.numeric), schema.coding.widths):
        raise ValueError("the model does not fit its columns")
    if prototypes * widest > MOST_CELLS:
        raise ValueError("too many prototypes")
    weights = _under(tensors, "model.")
    numbers = [value for name, value in tensors.items() if name.startswith(FINITE)]
    if not all(bool(value.isfinite().all()) for value in numbers if value.is_floating_point()):
        raise ValueError("a weight is not a number")
    if sum(shape.clusters) != weights["prior.weight"].shape[1]:
        raise ValueError("the weights do not fit the model")
    with torch.device("meta"):  # nothing is allocated for a shape that the weights do not fit
        model = LGMVAE(shape)
    model.load_state_dict(weights, assign=True)
    return model


def _try_out(fitted: Fitted, report: outer.Report) -> None:
    """Uses every part once, so that parts that do not fit together fail here and not later."""
    schema, decoder, prototypes = fitted.schema, fitted.decoder, fitted.prototypes
    labels = np.array([p.code for p in prototypes], dtype=np.int64)
    cells = np.stack([p.cells for p in prototypes])  # (prototypes, d)
    z = torch.as_tensor(np.stack([p.z for p in prototypes]), device=decoder.device)
    knots = [np.stack(f.knots) for f in schema.features if f.knots is not None]
    fits = (
        len(fitted.labels) == len(decoder.mixtures)
        and len(decoder.trees) in (0, len(fitted.labels))
        and all(isinstance(label, str | int) for label in fitted.labels)
        and [p.number for p in prototypes] == list(range(len(prototypes)))
        and all(p.valid in (False, True) for p in prototypes)
        and all(k.ndim == 2 and np.isfinite(k).all() for k in knots)
    )
    if not fits:
        raise ValueError("the parts do not fit together")
    schema.frame(cells)
    schema.decode(schema.encode(cells))
    decoder.decode(z, labels)
    decoder.latent_density(z, labels)
    for mixture in decoder.samplers.values():
        decoder.latent_density(mixture.sample(1, torch.Generator()).to(decoder.device), labels[:1])
    str(report)


def _under(tensors: Mapping[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def _tree(tensors: Mapping[str, torch.Tensor]) -> CategoryTree:
    return CategoryTree.from_arrays({name: value.numpy() for name, value in tensors.items()})
