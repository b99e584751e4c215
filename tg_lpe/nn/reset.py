"""Weights drawn anew, module by module."""

from __future__ import annotations

from torch import nn


def reset_all(module: nn.Module) -> None:
    """Draw all weights of a module anew, from torch's global generator, as its constructor does.

    A module that has ``reset_parameters`` resets itself. Otherwise its parts are reset one by one, in the order in
    which they were assigned.

    Raises:
        NotImplementedError: if a module without ``reset_parameters`` holds parameters of its own.
    """
    reset = getattr(module, "reset_parameters", None)
    if callable(reset):
        reset()
    else:
        reset_parts(module)


def reset_parts(module: nn.Module) -> None:
    """Call :func:`reset_all` on the parts of a module whose ``reset_parameters`` leaves everything to them.

    Raises:
        NotImplementedError: as :func:`reset_all`.
    """
    parameters = [name for name, parameter in module.named_parameters(recurse=False) if parameter is not None]
    reset = getattr(module, "_reset_parameters", None)  # the name in torch's attention and transformer
    if parameters and not callable(reset):
        raise NotImplementedError(
            f"{type(module).__name__} holds the parameters {parameters} and does not say how they are drawn; "
            "give it a method reset_parameters()"
        )
    for part in module.children():
        reset_all(part)
    if callable(reset):
        reset()
