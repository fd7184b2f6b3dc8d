"""Medians, the table and the record of a comparison. compare.py measures; this file only counts and writes."""

import json
import math
import os
import statistics
import subprocess


def median_interval(values):
    """The median, and an interval that holds the true one in 95 of 100 cases whatever the distribution."""
    ordered = sorted(values)
    skip = max(0, math.floor((len(ordered) - 1.96 * math.sqrt(len(ordered))) / 2))
    return statistics.median(ordered), ordered[skip], ordered[-1 - skip]


def rows_of(result):
    """One row per variant, fastest first."""
    batch = result["settings"]["batch"]
    torch = [name for name in result["rounds"] if result["program_of"][name] == "pytorch"]
    better = min(torch, key=lambda name: statistics.median(result["rounds"][name])) if torch else None
    rows = []
    for name, seconds in result["rounds"].items():
        median = statistics.median(seconds)
        rows.append({
            "variant": f"{result['program_of'][name]} {name}", "ms": median * 1e3, "min_ms": min(seconds) * 1e3,
            "max_ms": max(seconds) * 1e3, "images_per_s": batch / median,
            "ratio": statistics.median(result["rounds"][better]) / median if better else None,
        })
    return better, sorted(rows, key=lambda row: row["ms"])


def lines_of(result):
    """What must hold: (text, measured, met)."""
    better, _ = rows_of(result)
    lines = []
    if better:
        ours, theirs = result["rounds"]["dp1"], result["rounds"][better]
        ratio = statistics.median(theirs) / statistics.median(ours)
        each = [b / a for a, b in zip(ours, theirs)]
        lines.append({
            "must": "dp1 against the better PyTorch variant: ratio of medians >= 1.3",
            "measured": f"{ratio:.3f} (round by round {min(each):.3f} to {max(each):.3f}; {better})", "met": ratio >= 1.3})
    for pair in result["pairs"]:
        ratios = [b / a for a, b in zip(pair["seconds_a"], pair["seconds_b"])]
        median, low, high = (100 * (ratio - 1) for ratio in median_interval(ratios))
        lines.append({
            "must": f"{pair['b']} against {pair['a']}: at most {pair['limit_percent']} % slower",
            "measured": f"{median:+.2f} % (95 % interval of the median {low:+.2f} to {high:+.2f}, {len(ratios)} pairs)",
            "met": median <= pair["limit_percent"]})
    return lines


def markdown(result):
    better, rows = rows_of(result)
    text = [f"| variant | ms/step, median | min .. max | img/s | ratio to {better or 'PyTorch'} |", "|---|---|---|---|---|"]
    for row in rows:
        ratio = f"{row['ratio']:.3f}" if row["ratio"] else "not measured"
        text.append(f"| {row['variant']} | {row['ms']:.2f} | {row['min_ms']:.2f} .. {row['max_ms']:.2f} | "
                    f"{row['images_per_s']:.0f} | {ratio} |")
    text += ["", "| must hold | measured | |", "|---|---|---|"]
    text += [f"| {line['must']} | {line['measured']} | {'met' if line['met'] else '**not met**'} |" for line in lines_of(result)]
    load = result["load"]
    text += ["", f"Other processes used {load['others_cores']:.2f} cores on average while this was measured, the server that had "
                 f"to be idle {load['idle_server_cores']:.3f}."]
    if load["others_cores"] > 0.05:
        text.append("**The machine was busy: these figures are noise.**")
    return "\n".join(text)


def commit():
    folder = os.path.dirname(os.path.abspath(__file__))
    found = subprocess.run(["git", "-C", folder, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
                           capture_output=True, text=True, check=False)
    return found.stdout.strip() if found.returncode == 0 else "unknown"


def processor():
    with open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return "unknown"


def write_record(result, folder, name):
    """Two files: every figure as JSON, and the table with what is needed to repeat it as markdown. Returns their paths."""
    settings = result["settings"]
    facts = [
        ("commit", result["commit"]), ("date", result["date"]),
        ("processor", f"{result['processor']}, {result['cores']} cores to this process"),
        ("versions", ", ".join(f"{key} {value}" for key, value in result["versions"].items())),
        ("command", f"`{result['command']}`"),
        ("settings", ", ".join(f"{key} {value}" for key, value in settings.items())),
    ]
    text = [f"# {settings['model']}, batch {settings['batch']}, {settings['threads']} threads", ""]
    text += [f"- {key}: {value}" for key, value in facts]
    text += ["", markdown(result), "", f"Every round and slice is in `{name}.json`; `benchmarks/README.md` explains the columns.", ""]
    os.makedirs(folder, exist_ok=True)
    paths = [os.path.join(folder, name + ending) for ending in (".md", ".json")]
    with open(paths[0], "w") as file:
        file.write("\n".join(text))
    with open(paths[1], "w") as file:
        json.dump(result | {"lines": lines_of(result)}, file, indent=1)
        file.write("\n")
    return paths
