r"""The paper's latent correction: points that break a limit are moved where they break it less.

With $g$ the penalty of a decoded row, zero where every limit holds, $z \leftarrow z - \eta \nabla_z
g$. The step is Polyak's, $\eta = g / \lVert\nabla g\rVert^2$, the one that would bring a linear
$g$ to zero at once, so there is nothing to tune. All points of all paths go together, and each
stops as soon as it is satisfied. Nothing is promised: what still breaks a limit is left to the
projection, and to the check after it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lapace.arrays import Floats, Ints
from lapace.constraints import Custom, System
from lapace.paths import Decoder, Lines, Start

__all__ = ["Steering"]


# Steps a point may take. Before a projection one is best: on loans and on adult more cost time and
# gained nothing. Where nothing comes after, as for a Python function that cannot be projected, it
# may take many.
CORRECTIONS, PATIENT = 1, 20
STRIDE = 1.0  # latent length of one step, at most


@dataclass(frozen=True)
class Steering:
    """Moves the latent points of rows that break a limit, and decodes them again.

    Attributes:
        decoder: Turns latent points into rows.
        system: The limits.
        start: The instances.
        lines: The lines the rows lie on.
        patient: Whether points may take many steps, as where no projection comes after.
    """

    decoder: Decoder
    system: System
    start: Start
    lines: Lines
    patient: bool = False

    def __call__(self, tau: Floats, z: Tensor, rows: Floats, lines: Ints) -> Floats:
        """The rows, those that break a limit decoded from where they break it less."""
        instance = self.lines.instance[lines]
        instances = self.start.cells[instance]
        broken = np.flatnonzero(~self.system.feasible(rows, instances))
        if not len(broken):
            return rows
        moved = z[torch.as_tensor(broken, device=z.device)].clone()
        stirred = self.correct(tau[broken], moved, rows[broken], instance[broken])
        if not len(stirred):
            return rows
        at = torch.as_tensor(stirred, device=z.device)
        broken, moved = broken[stirred], moved[at]
        lines = lines[broken]
        rows = rows.copy()
        rows[broken] = self.decoder.rows(
            self.start,
            instance[broken],
            tau[broken],
            moved,
            self.lines.label[lines],
            self.lines.frozen[lines] & (tau[broken] < 1.0),  # twins end in the same row
        )
        return rows

    def correct(self, tau: Floats, z: Tensor, rows: Floats, instance: Ints) -> Ints:
        """Moves `z` in place; says which of its points it moved."""
        instances = self.start.cells[instance]
        open_ = np.arange(len(rows))
        stirred = np.zeros(len(rows), dtype=bool)
        limits = self.system.constraints
        alone = any(isinstance(c, Custom) and c.project is None for c in limits)
        for _ in range(PATIENT if self.patient or alone else CORRECTIONS):
            at = torch.as_tensor(open_, device=z.device)
            # Whatever mode the caller is in, this needs its gradient.
            with torch.inference_mode(False), torch.enable_grad():
                point = z[at].clone().requires_grad_()
                values = self.decoder.live(
                    self.start, instance[open_], tau[open_], point, rows[open_]
                )
                g = self.system.penalty(values, instances[open_])  # (m,)
                if not g.requires_grad:
                    break
                (slope,) = torch.autograd.grad(g.sum(), point)
            steep = slope.square().sum(dim=1)
            active = ((g > 0) & (steep > 0)).cpu().numpy()
            if not active.any():
                break
            step = (g.detach().to(z) / steep.clamp(min=1e-12))[:, None] * slope
            length = step.norm(dim=1, keepdim=True)
            step = step * (STRIDE / length.clamp(min=STRIDE))
            open_, keep = open_[active], torch.as_tensor(active, device=z.device)
            z[at[keep]] -= step[keep]
            stirred[open_] = True
        return np.flatnonzero(stirred)
