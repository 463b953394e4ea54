"""Bars of put + get for each table and side, as SVG."""

COLOURS = ["#1f6f8b", "#4fa3bf", "#b5541c", "#d9975b", "#7a7a7a", "#a9a9a9"]
LEFT, WIDTH, BAR, GAP = 230, 620, 16, 26


def bars(title: str, groups: dict[str, dict[str, float]], unit: str) -> str:
    """`groups`: for each heading, a value by label; longer is more."""
    most = max(value for group in groups.values() for value in group.values())
    labels = list(dict.fromkeys(label for group in groups.values() for label in group))
    lines, y = [f'<text x="8" y="20" font-weight="bold">{title}</text>'], 36
    for heading, group in groups.items():
        lines.append(f'<text x="8" y="{y + 13}">{heading}</text>')
        for label, value in group.items():
            width, colour = max(value / most * (WIDTH - 90), 1), COLOURS[labels.index(label) % len(COLOURS)]
            lines.append(f'<text x="{LEFT - 6}" y="{y + 13}" text-anchor="end">{label}</text>')
            lines.append(f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR - 2}" fill="{colour}"/>')
            lines.append(f'<text x="{LEFT + width + 5:.1f}" y="{y + 13}">{value:.2f} {unit}</text>')
            y += BAR + 2
        y += GAP - BAR
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH}" height="{y}" font-family="sans-serif" font-size="12">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *lines, "</svg>\n"])
