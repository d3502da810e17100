"""Whether a polygon of the site file is one."""

from __future__ import annotations

from appliance.config.values import SharePoint


def polygon_problem(points: tuple[SharePoint, ...]) -> str | None:
    if len(points) < 3:
        return f"a polygon needs at least 3 points, this has {len(points)}"
    if len(points) > 64:
        return f"a polygon may have at most 64 points, this has {len(points)}"
    edges = list(zip(points, points[1:] + points[:1], strict=True))
    for i, (a, b) in enumerate(edges):
        for j in range(i + 2, len(edges)):
            if (j + 1) % len(edges) != i and _cross(a, b, *edges[j]):
                return f"its edges {i + 1} and {j + 1} cross; list the corners in order around the zone"
    area = sum(a[0] * b[1] - b[0] * a[1] for a, b in edges) / 2
    return "its points enclose no area" if abs(area) < 1e-5 else None


def _cross(a: SharePoint, b: SharePoint, c: SharePoint, d: SharePoint) -> bool:
    def side(p: SharePoint, q: SharePoint, r: SharePoint) -> float:
        return (q[0] - p[0]) * (r[1] - p[1]) - (q[1] - p[1]) * (r[0] - p[0])

    return side(a, b, c) * side(a, b, d) < 0 and side(c, d, a) * side(c, d, b) < 0
