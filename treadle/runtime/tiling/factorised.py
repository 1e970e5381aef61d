"""Functions of tiles that factorise or invert matrices: NumPy's, one result each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Matrix = np.ndarray[Any, Any]


def _part(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The result `name` of a function with several; tasks that need another compute it again."""

    def one(matrix: Matrix, **params: Any) -> Matrix:
        made: Matrix = getattr(function(matrix, **params), name)
        return made

    return one


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "cholesky": lambda matrix: np.linalg.cholesky(matrix),
    "cholesky_upper": lambda matrix: np.linalg.cholesky(matrix, upper=True),
    "inv": lambda matrix: np.linalg.inv(matrix),
    "det": lambda matrix: np.linalg.det(matrix),
    "solve": lambda matrix, right: np.linalg.solve(matrix, right),
    "qr_q": _part(np.linalg.qr, "Q"),
    "qr_r": _part(np.linalg.qr, "R"),
    "svd_u": _part(np.linalg.svd, "U"),
    "svd_s": _part(np.linalg.svd, "S"),
    "svd_vh": _part(np.linalg.svd, "Vh"),
    "svdvals": lambda matrix: np.linalg.svdvals(matrix),
    "eigh_values": _part(np.linalg.eigh, "eigenvalues"),
    "eigh_vectors": _part(np.linalg.eigh, "eigenvectors"),
    "eigvalsh": lambda matrix: np.linalg.eigvalsh(matrix),
    "slogdet_sign": _part(np.linalg.slogdet, "sign"),
    "slogdet_log": _part(np.linalg.slogdet, "logabsdet"),
    "pinv": lambda matrix, **params: np.linalg.pinv(matrix, **params),
    "pinv_within": lambda matrix, limits: np.linalg.pinv(matrix, rtol=limits[..., 0, 0]),
    "matrix_rank": lambda matrix, **params: np.linalg.matrix_rank(matrix, **params),
}
