"""report.json and report.md, and all output as logs.tar.gz. Written after every part: what there is survives whatever comes."""
import json
import os
import tarfile


def write(out, facts, parts, logs):
    records = []
    for part in parts:
        record = {"name": part.name, "result": part.result, "detail": part.detail, "seconds": part.seconds,
                  "commands": list(part.commands)}
        for extra in ("failed_tests", "skipped_tests", "unfinished_tests", "notes"):
            if hasattr(part, extra):
                record[extra] = getattr(part, extra)
        if part.result != "passed":
            record["telling"] = part.telling
            record["output_tail"] = part.output_tail
        records.append(record)
    replace(out / "report.json", (json.dumps({**facts, "parts": records}, indent=1) + "\n").encode())
    replace(out / "report.md", readable(facts, records).encode())
    packed = out / "logs.tar.gz.new"
    with tarfile.open(packed, "w:gz", compresslevel=6) as archive:
        archive.add(logs, "logs")
    os.replace(packed, out / "logs.tar.gz")


def replace(file, content):
    new = file.with_name(file.name + ".new")
    new.write_bytes(content)
    os.replace(new, file)


def verdict_of(facts):
    if not facts["finished"]:
        return "Not finished: what follows is what there is so far"
    return "Everything passed" if facts["passed"] else "Not everything passed"


def readable(facts, records):
    lines = [
        "# GPU check", "",
        f"**{verdict_of(facts)}**, in {facts['seconds']} s.", "",
        f"- commit: {facts['commit']}", f"- date: {facts['date']}", f"- GPUs: {', '.join(facts['gpus'])}",
        f"- host: {facts['host']}", "",
        "| part | result | seconds | |", "|---|---|---|---|",
    ]
    for record in records:
        detail = record["detail"].replace("|", "\\|")
        lines.append(f"| {record['name']} | {record['result']} | {record['seconds']} | {detail} |")
    for record in records:
        for note in record.get("notes", []):
            lines += ["", f"{record['name']}: {note}."]
        for what in ("skipped", "unfinished"):
            if record.get(f"{what}_tests"):
                lines += ["", f"{record['name']}, {what}: " + "; ".join(record[f"{what}_tests"]) + "."]
    for record in records:
        if record["result"] in ("passed", "running"):
            continue
        lines += ["", f"## {record['name']}: {record['result']}", ""]
        lines += [f"- {name}" for name in record.get("failed_tests", [])]
        tail = record.get("output_tail", "").splitlines()[-40:]
        telling = [line for line in record.get("telling", []) if line not in tail]
        lines += ["", "```", *record["commands"], ""]
        lines += [*telling, "[...]"] if telling else []
        lines += [*tail, "```"]
    lines += ["", "## On what", "", "```", facts["environment"].strip(), "```", ""]
    return "\n".join(lines)
