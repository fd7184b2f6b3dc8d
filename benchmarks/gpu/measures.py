"""Parts that measure training steps next to PyTorch's, by benchmarks/gpu/gpu.py, and merge the records."""
import json
import pathlib
import shutil
import sys

from parts import CutShort

ROOT = pathlib.Path(__file__).resolve().parents[2]
NETWORK, BATCH = "3x3 stem", 512
DRY_NETWORK, DRY_BATCH = "MLP, 8x8", 8
PIECE = 15 << 20     # largest file in bytes that is copied back
PIECES = 2           # largest number of files of the Inductor cache


class Measures:
    def __init__(self, parts, build, work, out, python, commit, dry=False):
        self.parts, self.build, self.out, self.python, self.commit = parts, build, out, python, commit
        self.records = work / "records"
        self.inductor = work / "inductor"
        self.network = ["--networks", DRY_NETWORK if dry else NETWORK, "--batches", DRY_BATCH if dry else BATCH]
        if dry:
            self.network += ["--rounds", 1, "--seconds", 0.01]
        for folder in (self.records, self.inductor):
            folder.mkdir(parents=True, exist_ok=True)

    def gpu_py(self, types, *more):
        return [sys.executable, "-B", ROOT / "benchmarks/gpu/gpu.py", "--only", "step", *self.network, "--types", types,
                "--gpus", "0", "--build", self.build, "--python", self.python, "--commit", self.commit, *more]

    def step(self, name, kind, theirs, limit, needs):
        """Measures dp's training step together with one variant of PyTorch's."""
        def check(part):
            record = self.records / part.name.replace(",", "").replace(" ", "-")
            seconds = min(limit, self.parts.left() - 15)
            _, output = self.parts.command(
                part, self.gpu_py(kind, "--variants", f"plan,dp1,{theirs}", "--limit", f"{seconds:.0f}", "--each", f"{max(seconds, 20):.0f}", "--out", record),
                seconds + 15, TORCHINDUCTOR_CACHE_DIR=self.inductor)
            self.join()
            part.result, part.detail = self.judged(record.with_name(record.name + ".json"), theirs, output)
            if part.result == "failed" and seconds < limit:
                raise CutShort

        self.parts.run(name, check, needs)

    @staticmethod
    def judged(file, theirs, output):
        """(result, one line) of a record."""
        if not file.is_file():
            return "failed", (output.strip().splitlines() or ["no record"])[-1]
        record = json.loads(file.read_text())
        result = record["results"][0]
        reports = [report for report in (result["report"], *result["more"].values()) if report]
        rows = [row for report in reports for section in report["sections"] if section["key"] == "variants" for row in section["rows"]]
        ms = {row["key"]: row["ms_per_step"] for row in rows if row["kind"] == "measured"}
        notes = {row["key"]: row.get("note") for row in rows if row["kind"] != "measured"}
        if "dp1" not in ms:
            return "failed", notes.get("dp1") or result["why"] or "dp was not measured"
        text = f"dp {ms['dp1']:.3f} ms, {1e3 * result['about']['batch'] / ms['dp1']:,.0f} images/s"
        if theirs in ms:
            return "passed", f"{text}; {theirs} {ms[theirs]:.3f} ms, {ms[theirs] / ms['dp1']:.2f} times as long"
        text += f"; {theirs} was not measured: {notes.get(theirs) or result['why'] or 'no reason was given'}"
        return "passed" if str(record["facts"].get("PyTorch", "none")).startswith("none") else "failed", text

    def join(self):
        """Merges all records into measured.json and measured.md."""
        files = sorted(self.records.glob("*.json"))
        if files:
            log = self.parts.logs / "measured.log"
            self.parts.launched([str(word) for word in self.gpu_py("bf16,fp16", "--with", *files, "--limit", 0, "--out", self.out / "measured")], log, 60)

    def compiled(self, always):
        """Measures next to compiled PyTorch. Starts with at least 300 s left (60 s if `always`): compiling takes
        minutes. Saves the Inductor cache for the next call."""
        name = "steps, bf16, compared with compiled PyTorch"
        try:
            self.step(name, "bf16", "torch-compiled", 540, 60 if always else 300)
        finally:
            if not self.parts.planning and self.parts.part(name).commands:
                self.keep_compiled()

    def keep_compiled(self):
        if not any(self.inductor.iterdir()):
            return
        packed = self.inductor.with_name("inductor.tar.gz")
        shutil.make_archive(str(packed)[:-len(".tar.gz")], "gztar", self.inductor)
        content = packed.read_bytes()
        packed.unlink()
        if len(content) > PIECES * PIECE:
            self.parts.part("steps, bf16, compared with compiled PyTorch").notes = [f"its cache has {len(content) / 2**20:.0f} MiB and is not returned"]
            return
        for i in range(PIECES):
            piece = self.out / f"inductor.tar.gz.{i}"
            piece.unlink(missing_ok=True)
            if content[i * PIECE:]:
                piece.write_bytes(content[i * PIECE:(i + 1) * PIECE])

    def restore_compiled(self, earlier):
        pieces = [earlier / f"inductor.tar.gz.{i}" for i in range(PIECES) if (earlier / f"inductor.tar.gz.{i}").is_file()]
        if pieces:
            packed = self.inductor.with_name("inductor.tar.gz")
            packed.write_bytes(b"".join(piece.read_bytes() for piece in pieces))
            shutil.unpack_archive(packed, self.inductor)
            packed.unlink()
