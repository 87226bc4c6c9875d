"""`explain`, `why-not` and `plot`: what would have to change, and why some have no answer."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.padding import Padding
from rich.text import Text

from lapace.cli import options
from lapace.cli.inputs import (
    STDIN,
    constraints_of,
    costs_of,
    one_instance,
    opened,
    read_table,
    target_of,
)
from lapace.cli.outputs import destination, file_for
from lapace.cli.showing import instances, reason_of, told
from lapace.cli.terminal import Terminal
from lapace.errors import InputError

if TYPE_CHECKING:
    from lapace.explainer import Explainer
    from lapace.result import Counterfactuals, Explanation

__all__ = ["explain", "plot", "why_not"]

PICTURES = (".png", ".svg", ".pdf")


def explain(
    model: options.Model,
    people_: options.Instances,
    target: options.Target = None,
    constraints: options.ConstraintFiles = None,
    constraint: options.ConstraintTexts = None,
    pick: Annotated[
        options.Pick,
        typer.Option(
            help="Which rows: nearest and sparse are one per instance; first, middle and last one "
            "per prototype; path is every step. JSON has them all."
        ),
    ] = options.Pick.nearest,
    format_: Annotated[
        options.Format | None,
        typer.Option("--format", help="By default what OUT ends in, else a table."),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="OUT", help="A file, or - for standard output."),
    ] = None,
    costs: options.Costs = None,
    cost: options.Cost = None,
    confidence: options.Confidence = None,
    steps: options.Steps = 20,
    detail: Annotated[
        options.Detail,
        typer.Option(help="Ask the classifier about every step, or only what the picks need."),
    ] = options.Detail.path,
    enforce: Annotated[
        options.Enforce,
        typer.Option(help="How constraints are made to hold; naive and latent are to compare."),
    ] = options.Enforce.exact,
    stable: Annotated[
        bool,
        typer.Option(
            help="first is where the last unbroken run of good steps begins; otherwise the first "
            "good step of all."
        ),
    ] = True,
    instance: options.InstanceExplanation = None,
    classifier: options.Named = None,
    trust: options.Trust = None,
    unsafe_pickle: options.UnsafePickle = False,
    timeout: options.Timeout = 30.0,
    device: options.Device = None,
    quiet: options.Quiet = False,
) -> None:
    """Say what would have to change, for everyone in a table.

    Exits with 0 also where some instances have no answer; a line on standard error counts them.
    """
    terminal = Terminal(quiet)
    where = destination(output, format_, [model, *_files(people_), *(constraints or ())])
    limits = constraints_of(constraints or (), constraint or ())
    prices = costs_of(costs, cost or ())
    explainer = opened(model, classifier, trust or (), unsafe_pickle, timeout, device)
    from lapace.explainer import Search

    settings: dict[str, Any] = {
        "costs": prices,
        "confidence": confidence,
        "search": Search(
            steps=steps,
            detail=detail.value,
            enforce=enforce.value,
            sparse=pick is options.Pick.sparse,
            stable=stable,
        ),
    }
    answer = _asked(explainer, people_, instance, target, limits, settings, terminal)
    where.put(
        terminal,
        table=lambda: instances(answer, pick, instance or 0),
        frame=lambda: _picked(answer, pick).frame,
        values=answer.to_json,
    )
    terminal.say(f"{answer!r}.")


def _files(people_: str) -> list[str]:
    return [] if people_ == STDIN else [people_]


def _asked(
    explainer: Explainer,
    people_: str,
    instance: int | None,
    target: str | None,
    limits: Sequence[Any],
    settings: Mapping[str, Any],
    terminal: Terminal,
) -> Explanation:
    table = one_instance(read_table(people_), instance)
    with terminal.progress() as progress:
        return explainer.explain(
            table,
            target=target_of(explainer, target),
            constraints=limits,
            progress=progress,
            **settings,
        )


def _picked(answer: Explanation, pick: options.Pick) -> Counterfactuals:
    if pick is options.Pick.path:
        return answer.all_steps()
    found: Counterfactuals = getattr(answer, pick.value)()
    return found


def why_not(
    model: options.Model,
    people_: options.Instances,
    target: options.Target = None,
    constraints: options.ConstraintFiles = None,
    constraint: options.ConstraintTexts = None,
    format_: Annotated[
        options.Format | None, typer.Option("--format", help="table or json.")
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="OUT", help="A .json or .txt file, or -."),
    ] = None,
    costs: options.Costs = None,
    cost: options.Cost = None,
    confidence: options.Confidence = None,
    steps: options.Steps = 20,
    instance: options.InstanceExplanation = None,
    classifier: options.Named = None,
    trust: options.Trust = None,
    unsafe_pickle: options.UnsafePickle = False,
    timeout: options.Timeout = 30.0,
    device: options.Device = None,
    quiet: options.Quiet = False,
) -> None:
    """Say why instances have no answer, and which constraints stand in the way."""
    terminal = Terminal(quiet)
    where = destination(output, format_, [model, *_files(people_), *(constraints or ())])
    if where.format in (options.Format.csv, options.Format.parquet):
        raise InputError("Reasons are a text or JSON: --format table or --format json.")
    from lapace.result import why_not_to_json

    limits = constraints_of(constraints or (), constraint or ())
    explainer = opened(model, classifier, trust or (), unsafe_pickle, timeout, device)
    from lapace.explainer import Search

    settings = {
        "costs": costs_of(costs, cost or ()),
        "confidence": confidence,
        "search": Search(steps=steps),
    }
    answer = _asked(explainer, people_, instance, target, limits, settings, terminal)
    where.put(
        terminal,
        table=lambda: _reasons(answer, instance or 0),
        frame=lambda: None,
        values=lambda: why_not_to_json(answer),
    )
    terminal.say(f"{answer!r}.")


def _reasons(answer: Explanation, offset: int) -> list[Any]:
    """Everyone without an answer, and why."""
    parts: list[Any] = []
    for instance in answer:
        if instance.why_not is not None:
            parts.append(told(instance, instance.position + offset, reason=False))
            parts.append(Padding(Text(instance.why_not.text), (0, 0, 1, 2)))
        elif instance.status == "malformed":
            parts.append(told(instance, instance.position + offset))
    if parts:
        return parts
    already = "already_target" in answer.status
    return [Text(f"Everyone has an answer{', or the target already' if already else ''}.")]


def plot(
    model: options.Model,
    people_: Annotated[
        str | None,
        typer.Argument(
            metavar="[PEOPLE]", help="Rows to choose an instance from; .csv, .parquet, -."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="OUT", help="The picture to write: .png, .svg or .pdf."
        ),
    ] = None,
    kind: Annotated[
        options.Picture | None,
        typer.Option(
            help="One instance's path, the latent map, the prototypes or the training; by default "
            "path with PEOPLE and latent without."
        ),
    ] = None,
    one: Annotated[
        int | None,
        typer.Option(help="Which row of PEOPLE, counted from 0; by default the first answered."),
    ] = None,
    prototype: Annotated[
        int | None,
        typer.Option(
            help="Which path; by default the one to the prototype whose first answer is nearest. "
            "-1 is the path to somebody nearby, where explain's nearest often lies."
        ),
    ] = None,
    label: Annotated[str | None, typer.Option(help="Only the prototypes of this label.")] = None,
    target: options.Target = None,
    constraints: options.ConstraintFiles = None,
    constraint: options.ConstraintTexts = None,
    classifier: options.Named = None,
    trust: options.Trust = None,
    unsafe_pickle: options.UnsafePickle = False,
    timeout: options.Timeout = 30.0,
    device: options.Device = None,
    quiet: options.Quiet = False,
) -> None:
    """Draw one instance's path, latent space, the prototypes or the training."""
    terminal = Terminal(quiet)
    kind = kind or (options.Picture.path if people_ is not None else options.Picture.latent)
    if kind is options.Picture.path and people_ is None:
        raise InputError("A path starts from an instance: name a table of PEOPLE as well.")
    sources = [model, *(_files(people_) if people_ is not None else ())]
    output = file_for(output or Path(f"{kind}.png"), sources, PICTURES)
    os.environ.setdefault("MPLBACKEND", "Agg")  # a file is written, no window is opened
    from lapace import plots
    from lapace.table import write_whole

    explainer = opened(model, classifier, trust or (), unsafe_pickle, timeout, device)
    instance: Any = None
    if people_ is not None and kind is not options.Picture.training:
        limits = constraints_of(constraints or (), constraint or ())
        answer = _asked(explainer, people_, one, target, limits, {}, terminal)
        required = one is not None or kind is options.Picture.path
        instance = _chosen(answer, one or 0, required=required)
        if instance is not None and one is not None:
            instance = replace(answer, ids=answer.ids or (one,))[instance.position]
    draw: dict[options.Picture, Callable[[], Any]] = {
        options.Picture.path: lambda: plots.path(instance, prototype).figure,
        options.Picture.latent: lambda: plots.latent_map(explainer, instance).figure,
        options.Picture.prototypes: lambda: (
            plots.prototypes(explainer, target_of(explainer, label), instance).figure
        ),
        options.Picture.training: lambda: plots.training_curves(explainer.history_),
    }
    figure = draw[kind]()
    write_whole(output, lambda path: figure.savefig(path, dpi=120))
    terminal.say(f"Wrote '{output}'.")


def _chosen(answer: Explanation, offset: int, *, required: bool) -> Any:
    """The first instance with an answer, or with any path at all."""
    for wanted in (("answered",), ("none_found",)):
        for instance in answer:
            if instance.status in wanted and instance.prototypes:
                return instance
    if required:
        why = f" {reason_of(answer[0], offset)}" if len(answer) == 1 else ""
        raise InputError(f"Nobody asked about has a path to draw.{why}")
    return None
