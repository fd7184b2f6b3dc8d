"""The page of a gpu.py record: the goals, all tables, then the missing figures with reasons."""

from gpu_record import fact_lines, table

IMAGES_PER_EPOCH = {"resnet18": 50000, "mnist_convnet": 60000}
CIFAR, IMAGENET, MNIST = "ResNet18, 3x3 stem, 32x32", "ResNet18, 7x7 stem, 224x224", "MNIST convnet, 28x28"


def shown(value, digits=2):
    if value is None:
        return "-"
    if isinstance(value, tuple):
        return f"{value[0]:.{digits}f} ({value[1]:.{digits}f} to {value[2]:.{digits}f})"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.{digits}f}"


# ---- what a result has


def rows_of(report, key):
    return next((section["rows"] for section in report["sections"] if section["key"] == key), [])


def has_figures(report):
    return report is not None and any(row["kind"] == "measured" for section in report["sections"] for row in section["rows"])


def reports_of(result):
    """Its report, then the reports of variants that were measured again with fewer variants."""
    return [report for report in (result["report"], *result.get("more", {}).values()) if report]


def variants_of(result):
    """{key: row} of the measured variants. The first report with a key wins."""
    rows = {}
    for report in reports_of(result):
        for row in rows_of(report, "variants"):
            if row["kind"] == "measured":
                rows.setdefault(row["key"], row)
    return rows


def ratio(result, theirs, ours):
    """Time of theirs / ours: (median of the ratios of the rounds, interval low, interval high), from one run with both,
    or None."""
    for report in reports_of(result):
        titles = {row["key"]: row["variant"] for row in rows_of(report, "variants")}
        for row in rows_of(report, "ratios"):
            if row["ratio_of"] == f"{titles.get(theirs)} / {titles.get(ours)}":
                return row["ratio"], row["low"], row["high"]
    return None


def images_per_second(result):
    own = variants_of(result).get("dp1")
    return result["about"]["batch"] * 1e3 / own["ms_per_step"] if own else None


def epoch_seconds(result):
    speed = images_per_second(result)
    images = IMAGES_PER_EPOCH.get(result["about"]["model"])
    return images / speed if images and speed and result["about"]["network"] != IMAGENET else None


def what(result):
    about = result["about"]
    return f"{result['section']}: {about['network']}, batch {about['batch']}, {about['type']}" if about else result["section"]


# ---- goals


def extreme(results, figure, least=False, **about):
    """(greatest or least figure, its result) of the results that match `about`, or None. Prefers 16-bit results."""
    found = [(figure(result), result) for result in results if all(result["about"].get(key) == value for key, value in about.items())]
    found = [(value, result) for value, result in found if value is not None]
    found = [pair for pair in found if pair[1]["about"].get("type") != "fp32"] or found
    if not found:
        return None
    return (min if least else max)(found, key=lambda pair: pair[0][0] if isinstance(pair[0], tuple) else pair[0])


def goal_cell(found, digits, show_batch=False):
    if found is None:
        return "-"
    value, result = found
    return f"{shown(value, digits)}, {result['about']['type']}" + (f", batch {result['about']['batch']}" if show_batch else "")


def goal_rows(results):
    steps = [result for result in results if result["section"] == "step"]
    virtual = [result for result in results if result["section"] == "virtual"]
    speeds = [goal_cell(extreme(steps, lambda r: images_per_second(r) and images_per_second(r) / 1e6, network=MNIST, batch=batch), 2) for batch in (64, 1024)]
    engine = lambda result: ratio(result, "plan", "dp1")  # noqa: E731
    return [
        ["ResNet18/CIFAR, batch 512, s/epoch", "0.60", "0.47", "0.40", goal_cell(extreme(steps, epoch_seconds, least=True, network=CIFAR, batch=512), 3)],
        ["the same in bf16, compiled PyTorch / dp", "1.1", "1.3", "1.5",
         goal_cell(extreme(steps, lambda r: ratio(r, "torch-compiled", "dp1"), network=CIFAR, batch=512, type="bf16"), 2)],
        ["the same in bf16, eager PyTorch / dp", "1.4", "1.7", "2.0",
         goal_cell(extreme(steps, lambda r: ratio(r, "torch-cl", "dp1"), network=CIFAR, batch=512, type="bf16"), 2)],
        ["ResNet18-224, img/s", "24,000", "30,000", "37,000", goal_cell(extreme(steps, images_per_second, network=IMAGENET), 0, True)],
        ["MNIST convnet, batch 64 / 1024, million img/s", "0.7 / 1.5", "1.2 / 2.5", "2 / 4", " / ".join(speeds)],
        ["bare plan / dp, at batch 512 of CIFAR", "0.971", "0.990", "0.995", goal_cell(extreme(steps, engine, least=True, network=CIFAR, batch=512), 3)],
        ["one replica / four on one GPU, batch 1024 in all", "0.870", "0.935", "0.971",
         goal_cell(extreme(virtual, lambda r: ratio(r, "dp1", "dp-virtual"), network=CIFAR, batch=1024, replicas=4), 3)],
    ]


# ---- tables


def step_rows(results):
    rows = []
    for result in results:
        about = result["about"]
        begin = [about["network"], about["batch"], about["type"]]
        ms = {key: row["ms_per_step"] for key, row in variants_of(result).items()}
        if not ms:
            rows.append([*begin, f"not run: {result['why']}", *[""] * 7])
            continue
        rows.append([*begin, shown(ms.get("plan"), 3), shown(ms.get("dp1"), 3), shown(images_per_second(result), 0), shown(epoch_seconds(result), 3),
                     shown(ms.get("torch-cl"), 3), shown(ms.get("torch-compiled"), 3), shown(ratio(result, "torch-cl", "dp1")),
                     shown(ratio(result, "torch-compiled", "dp1"))])
    return rows


def engine_rows(results):
    return [[*(result["about"][key] for key in ("network", "batch", "type")), shown(ratio(result, "plan", "dp1"), 3)] for result in results]


def virtual_rows(results):
    rows = []
    for result in results:
        about, value = result["about"], ratio(result, "dp1", "dp-virtual")
        rows.append([about["network"], about["batch"], about["type"], about["replicas"], shown(value, 3) if value else f"not run: {result['why'] or '-'}"])
    return rows


def section_table(section, digits):
    keys = list(section["columns"])
    cells = [[shown(row[key], digits) if isinstance(row[key], (int, float)) else row[key] or "-" for key in keys] for row in section["rows"]
             if row["kind"] != "not run"]
    return table([section["columns"][key] for key in keys], cells)


def layer_lines(result):
    about, report = result["about"], result["report"]
    lines = [f"### {about['network']}, batch {about['batch']}, {about['type']}", ""]
    if report is None:
        return [*lines, f"not run: {result['why']}", ""]
    lines += [f"Not complete: {result['why']}", ""] if result["why"] else []
    return lines + section_table(max(report["sections"], key=lambda section: len(section["rows"])), 3)


def comm_lines(result):
    if result["report"] is None:
        return [f"not run: {result['why']}", ""]
    return [line for section in result["report"]["sections"] for line in (f"### {section['title']}", "", *section_table(section, 2))]


def missing_rows(results):
    """Every case and every variant without a figure, with the reason."""
    rows = []
    for result in results:
        if result["why"]:
            rows.append([what(result), "all" if result["report"] is None else "some", result["why"]])
        measured, told = variants_of(result), set()
        for section in (section for report in reports_of(result) for section in report["sections"]):
            for row in (row for row in section["rows"] if row["kind"] == "not run"):
                name = row[next(iter(section["columns"]))]
                if row.get("key") not in measured and name not in told:
                    told.add(name)
                    rows.append([what(result), name, row.get("note") or "-"])
    return rows


def noisy_rows(results):
    return [[what(result), report["facts"]["warning"]] for result in results for report in reports_of(result) if report["facts"].get("warning")]


def alone_rows(results):
    return [[what(result), key] for result in results for key, report in result.get("more", {}).items() if report]


def said_by_all(results):
    """Facts of all reports about the programs. Different values of a fact are joined."""
    facts = {}
    for key, title in (("dp", "dp"), ("processor", "processor"), ("versions", "versions"), ("PyTorch", "PyTorch of the layers")):
        answers = dict.fromkeys(str(report["facts"][key]) for result in results for report in reports_of(result) if report["facts"].get(key))
        if answers:
            facts[title] = "; ".join(answers)
    return facts


def page(record):
    results = record["results"]
    of = {name: [result for result in results if result["section"] == name] for name in ("step", "virtual", "ways", "layers", "comm")}
    lines = ["# Measured on one host", ""]
    lines += [line for run in record["runs"] for line in (f"`{run['command']}`, {run['date']}, {run['seconds']:.0f} s", "")]
    lines += fact_lines({**record["facts"], **said_by_all(results)})
    if record.get("environment"):
        lines += ["```", record["environment"], "```", ""]
    if noisy_rows(results):
        lines += ["## Too noisy: not used", "", *table(["what", "why"], noisy_rows(results))]
    if of["step"]:
        lines += ["## Goals", "", *table(["what", "pass", "strong", "moonshot", "measured"], goal_rows(results))]
        lines += ["## Training steps", "", "Medians of the rounds; the variants alternate, and all make the augmented images on the device. Ratios: the median over "
                  "the rounds, with its 95 % interval.", ""]
        lines += table(["network", "batch", "type", "bare plan ms", "dp ms", "img/s", "s/epoch", "PyTorch ms", "compiled ms", "PyTorch / dp", "compiled / dp"],
                       step_rows(of["step"]))
        if alone_rows(of["step"]):
            lines += ["These were measured in a separate run with `dp1`, because memory or time did not suffice for all variants at once; their ratios "
                      "are from that run:", "",
                      *table(["what", "variant"], alone_rows(of["step"]))]
        lines += ["## The engine compared with the bare plan", "", *table(["network", "batch", "type", "plan / dp (at least 0.990)"], engine_rows(of["step"]))]
    if of["virtual"]:
        lines += ["## Replicas on one device, the same global batch", "",
                  *table(["network", "batch", "type", "replicas", "one / several (at least 0.935)"], virtual_rows(of["virtual"]))]
    for name, title in (("ways", "Candidates for each op"), ("layers", "Layers")):
        lines += ["## " + title, ""] if of[name] else []
        lines += [line for result in of[name] for line in layer_lines(result)]
    lines += ["## Collectives", ""] if of["comm"] else []
    lines += [line for result in of["comm"] for line in comm_lines(result)]
    if missing_rows(results):
        lines += ["## Not measured", "", *table(["what", "which", "why"], missing_rows(results))]
    return "\n".join(lines)
