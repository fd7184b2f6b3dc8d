"""A fake GPU host for tests of whole calls of gpu_all.py: GPU, prebuilt programs and PyTorch are fakes. Each line of
the file `behaviour` has an action and the words of the command that it applies to. The file `asked` records all
commands."""
import json
import os
import pathlib
import subprocess
import sys
import tarfile

TOOL = pathlib.Path(__file__).resolve().parents[2] / "benchmarks/gpu"

CALL = """
import os, pathlib, sys
sys.dont_write_bytecode = True
sys.path.insert(0, {here!r})
import checks, gpu_all, gpus, parts
home = pathlib.Path({home!r})
(home / "pid").write_text(str(os.getpid()))
gpus.probe = lambda: [gpus.Gpu("H100", "90")]
gpus.driver_version = lambda: 13000
gpu_all.ROOT, gpu_all.CARRIED = home, home / "binaries.tar.xz"
{patch}
sys.exit(gpu_all.main(sys.argv[1:]))
"""

# The beginning of each fake program.
BEGIN = """#!/bin/sh
home={home}
for word in "$@"; do [ "$word" != --help ] || exit 0; done
case "$1" in --list*) echo "a case"; exit ;; esac
line="${{0##*/}} $*"
echo "$line" >>$home/asked
while read -r act words; do
  case "$line" in *"$words"*) case $act in
    kill-call) kill -9 $(cat $home/pid); exec sleep 20 ;;
    stop-call) : >$home/reached; exec sleep 20 ;;
    die) kill -9 $$ ;;
    hang) exec sleep 600 ;;
  esac ;; esac
done <$home/behaviour
"""
DP_TRAIN = """
[ "$1" != env ] || {{ echo "cuda:0 H100"; echo "plugin of $DP_PLUGIN_PATH"; exit; }}
while [ "$1" != --summary ]; do shift; done
[ -z "$DP_TUNING_LOG" ] || printf 'conv\\tcudnn:eng1\\t2\\n' >"$DP_TUNING_LOG"
mkdir -p "$XDG_CACHE_HOME/dp" && echo "$line" >>"$XDG_CACHE_HOME/dp/tuning-1"
echo '{{"weights_sha256": "abc", "train_loss": 2.5, "images_per_second": 900, "top1": 95}}' >"$2"
"""
OP_BITS = "echo 'bits add 3 aa'\n"
SANITIZER = "echo '========= ERROR SUMMARY: 0 errors'\n"
DP_BENCH = """
case "$line" in *torch-compiled*) [ -f "$TORCHINDUCTOR_CACHE_DIR/kernel" ] && echo "compiled before" >>$home/asked; exec {python} $home/bench.py "$@" ;; esac
exec {python} $home/bench.py "$@"
"""
BENCH = """import json, os, pathlib, sys
words = sys.argv[1:]
value = lambda name: words[words.index(name) + 1]
ms = {"plan": 5.9, "dp1": 6.0, "torch-cl": 9.0, "torch-compiled": 6.6}
keys = value("--variants").split(",")
rows = [{"kind": "measured", "variant": key.upper(), "key": key, "ms_per_step": ms[key]} for key in keys]
ratios = [{"kind": "measured", "ratio_of": a.upper() + " / " + b.upper(), "ratio": ms[a] / ms[b], "low": 0.9, "high": 2.0} for a in keys for b in keys]
report = {"facts": {}, "sections": [{"key": "variants", "columns": {}, "rows": rows}, {"key": "ratios", "columns": {}, "rows": ratios}]}
pathlib.Path(value("--json")).write_text(json.dumps(report))
"""


class Host:
    def __init__(self, home, build="built"):
        self.home = pathlib.Path(home)
        self.build = self.home / build
        self.started_in = self.home
        self.patch = ""  # Python code that a call runs before main()
        self.behave("")
        (self.home / "bench.py").write_text(BENCH)
        special = {"dp_train": DP_TRAIN, "dp_bench": DP_BENCH, "op_bits": OP_BITS, "op_bits_simulated": OP_BITS}
        sys.path.insert(0, str(TOOL))
        import carried
        self.carried = carried
        for name in [*carried.NEEDED, *carried.OPTIONAL]:
            self.pretend(self.build / name, special.get(name.split("/")[-1], ""))
        self.pretend(self.home / "bin/compute-sanitizer", SANITIZER)
        self.pretend(self.home / "bin/nvidia-smi", "")
        (self.home / "dev").write_text("#!/bin/sh\n")
        (self.home / "dev").chmod(0o755)
        (self.build / "CMakeCache.txt").write_text("DP_NATIVE:BOOL=OFF\nDP_CUDA_ARCHITECTURES:STRING=90\n")
        (self.home / "CMakeLists.txt").write_text("")

    def pretend(self, file, script):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text((BEGIN + script).format(home=self.home, python=sys.executable))
        file.chmod(0o755)

    def pack(self):
        return self.carried.pack(self.build, self.home / "binaries.tar.xz", "c0ffee", preset=0)

    def behave(self, text):
        (self.home / "behaviour").write_text(text)
        (self.home / "asked").write_text("")

    def asked(self):
        return (self.home / "asked").read_text()

    def start(self, *words):
        environment = {**os.environ, "PATH": f"{self.home}/bin:{os.environ['PATH']}", "XDG_CACHE_HOME": "", "DP_STARTED_IN": str(self.started_in)}
        del environment["XDG_CACHE_HOME"]
        environment.pop("OUT", None)
        code = CALL.format(here=str(TOOL), home=str(self.home), patch=self.patch)
        return subprocess.Popen([sys.executable, "-c", code, "--commit", "abc", *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True, env=environment, cwd=self.home)

    def call(self, *words):
        """(status, output)"""
        with self.start(*words) as process:
            try:
                output, _ = process.communicate(timeout=300)
            finally:
                process.kill()
        return process.returncode, output

    def record(self, out):
        return json.loads((self.home / out / "report.json").read_text())

    def results(self, out):
        return {part["name"]: part["result"] for part in self.record(out)["parts"]}

    def kept(self, out):
        with tarfile.open(self.home / out / "kept.tar.gz") as archive:
            return {name: archive.extractfile(name).read().decode() for name in archive.getnames() if archive.getmember(name).isfile()}
