r"""The paper's latent correction: points moved until the rows decoded from them are feasible.

With $g$ the penalty of a decoded row, zero where every constraint holds,
$z \leftarrow z - \eta \nabla_z g$. $\eta$ is small and fixed, and a point is corrected while it
violates a constraint, at most `N_CORRECT` times. Only `Search(enforce="latent")` does it: before a
projection it took up to half of the time, for fewer ok rows that were slightly denser.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lapace.arrays import Floats, Ints
from lapace.explainer.problem import Problem
from lapace.paths import EncodedInstances, Lines

__all__ = ["LatentCorrection"]

# The paper's correction, where it says "small" and "up to a maximum number". g counts shares of
# each column's range.
ETA, N_CORRECT = 0.1, 50


@dataclass(frozen=True)
class LatentCorrection:
    """Moves the latent points of rows that violate a constraint, and decodes them again.

    Attributes:
        problem: Holds the decoder and the constraints.
        instances: The instances, encoded.
        lines: The lines of the rows.
    """

    problem: Problem
    instances: EncodedInstances
    lines: Lines

    def __call__(self, tau: Floats, z: Tensor, rows: Floats, lines: Ints) -> Floats:
        """Returns the rows, infeasible ones decoded again from corrected latent points."""
        instance, active = self.lines.instance[lines], np.arange(len(rows))
        z, rows = z.clone(), rows.copy()
        for _ in range(N_CORRECT):
            originals = self.instances.cells[instance[active]]
            active = active[~self.problem.system.feasible(rows[active], originals)]
            if not len(active):
                break
            points = torch.as_tensor(active, device=z.device)
            slope = self._gradient(tau[active], z[points], rows[active], instance[active])
            if slope is None:
                break
            shift = ETA * slope
            moved = (shift != 0).any(dim=1).cpu().numpy()
            active, keep = active[moved], torch.as_tensor(moved, device=z.device)
            z[points[keep]] -= shift[keep].to(z)
            rows[active] = self._decoded(tau[active], z[points[keep]], lines[active])
        return rows

    def _gradient(self, tau: Floats, z: Tensor, rows: Floats, instance: Ints) -> Tensor | None:
        """Returns the gradient of g at points, (m, h); None where no constraint has one."""
        problem = self.problem
        # The gradient is needed whatever mode the caller is in.
        with torch.inference_mode(False), torch.enable_grad():
            point = z.clone().requires_grad_()
            values = problem.fitted.decoder.differentiable_rows(
                self.instances, instance, tau, point, rows
            )
            g = problem.system.penalty(values, self.instances.cells[instance])
            if not g.requires_grad:
                return None
            gradient: Tensor = torch.autograd.grad(g.sum(), point)[0]
        return gradient

    def _decoded(self, tau: Floats, z: Tensor, lines: Ints) -> Floats:
        frozen = self.lines.frozen[lines] & (tau < 1.0)  # at tau=1 both copies end in one row
        label, instance = self.lines.label[lines], self.lines.instance[lines]
        decoder = self.problem.fitted.decoder
        return decoder.path_rows(self.instances, instance, tau, z, label, frozen)
