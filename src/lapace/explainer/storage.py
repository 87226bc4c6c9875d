"""One zip that holds a fitted explainer, and nothing that runs.

```
format.json            what this file is, and its version
schema.json            the columns
config.json            labels, recipe, sizes, settings
weights.safetensors    the network, the densities, the category trees, prototypes' latent points
prototypes.json        the prototypes as they were judged
report.json            the fit report
```

Reading it loads JSON and tensors, never code. The classifier is not in it: it is handed back, or
lies beside it as a skops or ONNX file that `config.json` names, with a hash of what it held; and
the prototypes are judged again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar
from urllib.parse import urlsplit

import numpy as np
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from lapace.categories import CategoryTree
from lapace.classifiers import Label, load_bytes
from lapace.classifiers.loaders import PICKLES
from lapace.constraints import from_toml, to_toml
from lapace.errors import InputError
from lapace.explainer.fit import Fitted, Prototype
from lapace.model import LGMVAE, Mixture, Shape
from lapace.paths import Decoder
from lapace.report import Report
from lapace.schema import Schema
from lapace.table import write_whole
from lapace.training import Recipe

__all__ = ["Stored", "follow", "load", "reference", "save"]

FORMAT, VERSION = "lapace/explainer", 2
MEMBERS = (
    "format.json", "schema.json", "config.json", "weights.safetensors", "prototypes.json",
    "report.json",
)  # fmt: skip
LARGEST = 2**30  # bytes all members may unpack to, together
SETTINGS = ("n_prototypes", "n_latent", "random_state")  # arguments of `Explainer` kept
TIGHTEST = 200  # times a member may be larger unpacked; real ones are not ten times
FOLLOWED = (".skops", ".onnx")  # files of classifiers that can be opened again unasked
PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # others take memory before they give any
DAY = (2020, 1, 1, 0, 0, 0)  # the same explainer is the same file, bit for bit

T = TypeVar("T")
Settings = dict[str, Any]
Stored = tuple[Fitted, Report, Settings]
Reference = dict[str, str]  # {"file", "sha256"} to be followed, or {"named"} to be told of


def save(
    path: str | Path,
    fitted: Fitted,
    report: Report,
    settings: Settings,
    classifier: Reference | None = None,
) -> None:
    """Writes the file, whole or not at all.

    Args:
        path: Where to; by custom it ends in `.lapace`.
        fitted: What `fit` left behind.
        report: The fit report.
        settings: Plain JSON values to keep with it: the explainer's arguments.
        classifier: What `reference` made of the classifier's file or name.
    """
    decoder = fitted.decoder
    config = {
        "settings": settings,
        "labels": list(fitted.labels),
        "rules": to_toml(fitted.rules),
        "recipe": asdict(fitted.recipe),
        "shape": decoder.model.shape.to_json(),
        "history": {"names": list(fitted.history_names), "lines": fitted.history.tolist()},
        "trees": len(decoder.trees),
        **({} if classifier is None else {"classifier": classifier}),
    }
    prototypes = [
        {
            "number": p.number,
            "code": p.code,
            "cells": [None if np.isnan(v) else v for v in p.cells.tolist()],
            "valid": p.valid,
            "probability": None if np.isnan(p.probability) else p.probability,
            "members": p.members,
            "valid_before": p.valid_before,
            "note": p.note,
        }
        for p in fitted.prototypes
    ]
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
    for label, mixture in enumerate(decoder.mixtures):
        for part in fields(mixture):
            tensors[f"mixture.{label}.{part.name}"] = getattr(mixture, part.name).contiguous()
    for label, tree in enumerate(decoder.trees):
        for name, array in tree.to_arrays().items():
            tensors[f"tree.{label}.{name}"] = torch.from_numpy(np.ascontiguousarray(array))
    tensors["prototypes.z"] = torch.from_numpy(np.stack([p.z for p in fitted.prototypes]))
    return tensors


def load(path: str | Path, device: torch.device) -> Stored:
    """Reads the file back; anything that is not exactly such a file is refused with a sentence."""
    return _read(Path(path), lambda members: _parse(members, device))


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
        kind = json.loads(members["format.json"])
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
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        if sorted(e.filename for e in entries) != sorted(MEMBERS):
            raise InputError(f"'{path}' is not a saved explainer.")
        if any(e.compress_type not in PACKED for e in entries):
            raise InputError(f"'{path}' is not a saved explainer.")
        if sum(e.file_size for e in entries) > LARGEST or any(map(_swollen, entries)):
            raise InputError(f"'{path}' is not a saved explainer: a part is far too large.")
        members = {}
        for entry in entries:
            with archive.open(entry) as part:  # never more than was declared, whatever it claims
                members[entry.filename] = part.read(entry.file_size)
        return members


def _swollen(entry: zipfile.ZipInfo) -> bool:
    return entry.file_size > 2**20 + TIGHTEST * entry.compress_size


# ------------------------------------------------------------------------------------------------
# The classifier beside the file


def reference(path: str | Path, classifier: str | os.PathLike[str]) -> Reference:
    """What a saved explainer keeps of its classifier.

    A skops or ONNX file in the explainer's own folder, or below it, is kept by its relative path
    and a hash; of anything else only what to call it is kept, to be said when it is missing.

    Args:
        path: Where the explainer is to be saved.
        classifier: The classifier's file, `package.module:object`, or address.
    """
    text = os.fspath(classifier)
    if re.match("https?://", text, re.IGNORECASE):
        parts = urlsplit(text)  # without name, password and query: those are nobody's business
        return {"named": f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"}
    folder = Path(path).absolute().parent
    beside = folder / text
    found = beside if beside.is_file() else Path(text).absolute()
    if found.is_file():
        inside = Path(os.path.normpath(found))
        if inside.suffix.lower() in FOLLOWED and inside.is_relative_to(os.path.normpath(folder)):
            relative = inside.relative_to(os.path.normpath(folder)).as_posix()
            return {"file": relative, "sha256": hashlib.sha256(found.read_bytes()).hexdigest()}
        return {"named": found.name}
    if ":" in text and Path(text).suffix.lower() not in FOLLOWED:
        return {"named": text}
    raise InputError(f"There is no file '{text}' to refer to as the classifier's.")


def follow(path: str | Path, trust: Sequence[str] = ()) -> Any:
    """Opens the classifier a saved explainer refers to, if it still is what it was.

    Args:
        path: The saved explainer.
        trust: As in `load_classifier`.
    """
    path = Path(path)
    kept = _read(path, _reference)
    hand_over = "Hand it over: Explainer.load(path, classifier), or --classifier."
    if kept is None:
        raise InputError(f"'{path.name}' has no classifier beside it to open. {hand_over}")
    if "named" in kept:
        name = kept["named"]
        pickled = name.lower().endswith(PICKLES)
        what, more = (", a pickle", " --unsafe-pickle") if pickled else ("", "")
        raise InputError(
            f"'{path.name}' was fitted with '{name}'{what}, which is not followed: name it, "
            f"--classifier {name}{more}, or in Python Explainer.load(path, classifier)."
        )
    file = path.absolute().parent / kept["file"]
    try:
        data = file.read_bytes()
    except OSError:
        raise InputError(
            f"The classifier '{kept['file']}' is not beside '{path.name}' any more. {hand_over}"
        ) from None
    if hashlib.sha256(data).hexdigest() != kept["sha256"]:
        raise InputError(
            f"The classifier '{kept['file']}' has changed since '{path.name}' was saved, and is "
            f"not opened. Fit again with it. Or, if you know it for the right one: {hand_over}"
        )
    return load_bytes(data, file.name, trust=trust)


def _reference(members: Mapping[str, bytes]) -> Reference | None:
    kept = json.loads(members["config.json"]).get("classifier")
    if kept is None:
        return None
    if not isinstance(kept, dict) or not all(isinstance(v, str) for v in kept.values()):
        raise ValueError("a reference that is none")
    if set(kept) == {"named"}:
        return {"named": "".join(c for c in kept["named"][:200] if c.isprintable())}
    file = PurePosixPath(kept["file"])
    inside = not file.is_absolute() and ".." not in file.parts and file.name
    if not inside or re.search(r"[\\:\0]", kept["file"]) or file.suffix.lower() not in FOLLOWED:
        raise InputError(f"A saved explainer refers to '{file.name}' outside of its own folder.")
    if not re.fullmatch("[0-9a-f]{64}", kept["sha256"]):
        raise ValueError("a hash that is none")
    return {"file": kept["file"], "sha256": kept["sha256"]}


# ------------------------------------------------------------------------------------------------
# The parts


def _parse(members: Mapping[str, bytes], device: torch.device) -> Stored:
    schema = Schema.from_json(json.loads(members["schema.json"]))
    config = json.loads(members["config.json"])
    tensors = load_tensors(members["weights.safetensors"])
    shape = Shape.from_json(config["shape"])
    _check_shape(shape, schema, tensors)
    recipe = Recipe(**{**config["recipe"], "weights": tuple(config["recipe"]["weights"])})
    model = LGMVAE(shape)
    model.load_state_dict(_under(tensors, "model."))
    labels = tuple(config["labels"])
    decoder = Decoder(
        schema,
        model.to(device).eval().requires_grad_(False),
        tuple(Mixture(**_under(tensors, f"mixture.{k}.")) for k in range(len(shape.clusters))),
        tuple(_tree(_under(tensors, f"tree.{k}.")) for k in range(config["trees"])),
        follows_paper=recipe.follows_paper,
    )
    z = tensors["prototypes.z"].numpy()
    prototypes = tuple(
        _prototype(data, labels, z[i])
        for i, data in enumerate(json.loads(members["prototypes.json"]))
    )
    history = config["history"]
    fitted = Fitted(
        schema,
        labels,
        from_toml(config["rules"], "its rules"),
        decoder,
        prototypes,
        recipe,
        np.array(history["lines"], dtype=np.float64).reshape(-1, len(history["names"])),
        tuple(history["names"]),
    )
    report = Report.from_json(json.loads(members["report.json"]))
    _try_out(fitted, report)
    return fitted, report, {name: config["settings"][name] for name in SETTINGS}


def _check_shape(shape: Shape, schema: Schema, tensors: Mapping[str, torch.Tensor]) -> None:
    """Sizes that do not fit the columns or the weights are refused before memory is taken."""
    fits = (
        shape.continuous == len(schema.numeric)
        and shape.widths == schema.widths
        and tensors["model.decoder.0.weight"].shape == (shape.hidden, shape.latent)
        and tensors["model.mask"].shape == (len(shape.clusters), sum(shape.clusters))
    )
    if not fits:
        raise ValueError("the model does not fit its columns")


def _try_out(fitted: Fitted, report: Report) -> None:
    """Goes through the motions once: parts that do not fit together fail here, not later on."""
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
    decoder.percentile(z, labels)
    str(report)


def _under(tensors: Mapping[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def _tree(tensors: Mapping[str, torch.Tensor]) -> CategoryTree:
    return CategoryTree.from_arrays({name: value.numpy() for name, value in tensors.items()})


def _prototype(
    data: Mapping[str, Any], labels: Sequence[Label], z: np.ndarray[Any, Any]
) -> Prototype:
    cells = [np.nan if v is None else float(v) for v in data["cells"]]
    probability = data["probability"]
    return replace(
        Prototype(
            **{
                **data,
                "label": labels[data["code"]],
                "z": z,
                "cells": np.array(cells),
                "probability": np.nan,
            }
        ),
        probability=np.nan if probability is None else float(probability),
    )
