"""report.json and report.md."""
import json


def write(out, facts, parts):
    records = []
    for part in parts:
        record = {"name": part.name, "result": part.result, "detail": part.detail, "seconds": part.seconds,
                  "commands": part.commands}
        for extra in ("failed_tests", "skipped_tests", "notes"):
            if hasattr(part, extra):
                record[extra] = getattr(part, extra)
        if part.result != "passed":
            record["output_tail"] = part.output_tail
        records.append(record)
    (out / "report.json").write_text(json.dumps({**facts, "parts": records}, indent=1) + "\n")
    (out / "report.md").write_text(readable(facts, records))


def readable(facts, records):
    lines = [
        "# GPU check", "",
        f"**{'Everything passed' if facts['passed'] else 'Not everything passed'}**, in {facts['seconds']} s.", "",
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
        if record.get("skipped_tests"):
            lines += ["", f"{record['name']}, skipped: " + "; ".join(record["skipped_tests"]) + "."]
    for record in records:
        if record["result"] == "passed":
            continue
        lines += ["", f"## {record['name']}: {record['result']}", ""]
        lines += [f"- {name}" for name in record.get("failed_tests", [])]
        lines += ["", "```", *record["commands"], "", *record.get("output_tail", "").splitlines()[-40:], "```"]
    lines += ["", "## On what", "", "```", facts["environment"].strip(), "```", ""]
    return "\n".join(lines)
