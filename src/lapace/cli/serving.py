"""`serve`: hands an explainer over to the server."""

from __future__ import annotations

from typing import Annotated

import typer

from lapace.cli import options
from lapace.cli.inputs import opened
from lapace.cli.terminal import Terminal

__all__ = ["serve"]


def serve(
    model: options.Model,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 for any that is free.")] = 8000,
    token: Annotated[
        str | None,
        typer.Option(help="What callers must bring as a bearer token.", envvar="LAPACE_TOKEN"),
    ] = None,
    cors: Annotated[
        list[str] | None,
        typer.Option(help="An origin whose pages may call, such as https://bank.example."),
    ] = None,
    max_body: Annotated[int, typer.Option(help="Bytes a request may have.")] = 1_000_000,
    max_instances: Annotated[int, typer.Option(help="Instances a request may ask about.")] = 100,
    max_steps: Annotated[int, typer.Option(help="Steps a request may ask for.")] = 100,
    queue: Annotated[int, typer.Option(help="Requests that may wait; further ones get 429.")] = 64,
    classifier: options.Named = None,
    trust: options.Trust = None,
    unsafe_pickle: options.UnsafePickle = False,
    timeout: Annotated[
        float, typer.Option(help="Seconds a request, and a classifier at an address, may take.")
    ] = 30.0,
    device: options.Device = None,
    quiet: options.Quiet = False,
) -> None:
    """Answer over HTTP, on this machine only unless --host says otherwise."""
    from lapace import server

    terminal = Terminal(quiet)
    explainer = opened(model, classifier, trust or (), unsafe_pickle, timeout, device)
    terminal.say(f"{explainer!r}.")
    server.serve(
        explainer,
        host=host,
        port=port,
        token=token,
        cors=tuple(cors or ()),
        max_body=max_body,
        max_instances=max_instances,
        max_steps=max_steps,
        queue=queue,
        timeout=timeout,
        ready=lambda address: terminal.say(f"Listening at {address}; stop with Ctrl-C."),
    )
