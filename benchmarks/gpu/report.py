"""Writes report.json, report.md, and all output as logs.tar.gz. Called before and after every part, so that a killed
call keeps its results."""
import io
import json
import os
import tarfile

LONGEST_LOG = 2 << 20  # bytes; of a longer log only the beginning and the end are packed


def write(out, facts, parts, logs):
    records = [part.record() for part in parts]
    replace(out / "report.json", (json.dumps({**facts, "parts": records}, indent=1) + "\n").encode())
    replace(out / "report.md", readable(facts, records).encode())
    packed = out / "logs.tar.gz.new"
    with tarfile.open(packed, "w:gz", compresslevel=6) as archive:
        for log in sorted(logs.iterdir()):
            archive.addfile(*entry("logs/" + log.name, log))
    os.replace(packed, out / "logs.tar.gz")


def entry(name, log):
    content = log.read_bytes()
    if len(content) > LONGEST_LOG:
        content = content[:LONGEST_LOG // 2] + b"\n[...]\n" + content[-LONGEST_LOG // 2:]
    about = tarfile.TarInfo(name)
    about.size = len(content)
    return about, io.BytesIO(content)


def replace(file, content):
    new = file.with_name(file.name + ".new")
    new.write_bytes(content)
    os.replace(new, file)


def verdict_of(facts):
    if not facts["finished"]:
        return "Not finished: these are the results so far"
    if facts["passed"]:
        return "Everything passed"
    return "Nothing failed, but not everything could be run" if facts["nothing_failed"] else "Not everything passed"


def readable(facts, records):
    lines = [
        f"# {facts['title']}", "",
        f"**{verdict_of(facts)}**, in {facts['seconds']} s.", "",
        f"- commit: {facts['commit']}", f"- date: {facts['date']}", f"- GPUs: {', '.join(facts['gpus'])}",
        f"- host: {facts['host']}", f"- programs: {facts['programs']}", "",
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
        if record["result"] in ("passed", "skipped", "not run") or not record["commands"]:
            continue
        lines += ["", f"## {record['name']}: {record['result']}", ""]
        lines += [f"- {name}" for name in record.get("failed_tests", [])]
        tail = record.get("output_tail", "").splitlines()[-40:]
        telling = [line for line in record.get("telling", []) if line not in tail]
        lines += ["", "```", *record["commands"], ""]
        lines += [*telling, "[...]"] if telling else []
        lines += [*tail, "```"]
    lines += ["", "## Environment", "", "```", facts["environment"].strip(), "```", ""]
    return "\n".join(lines)
