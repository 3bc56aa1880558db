"""The shapes that the drawings of the docs are made of."""

from html import escape

INK = "#222222"


def text(
    x: float, y: float, said: str, *, anchor: str = "start", weight: str = "normal", fill: str = INK
) -> str:
    style = f'text-anchor="{anchor}" font-weight="{weight}" fill="{fill}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(said)}</text>'


def box(x: float, y: float, width: float, height: float, fill: str) -> str:
    """Never too narrow to be seen."""
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" height="{height}" fill="{fill}"/>'
