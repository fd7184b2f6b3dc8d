// The migration tables of docs/guide/engines.md: every row has a trial here that runs its right-hand side.
#include <dp/dp.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "process_group/rank_programs.h"
#include "support/temporary_folder.h"
#include "support/training.h"

using namespace dp;
using namespace dp::test;

namespace {

// The rows of the tables below "Coming from", without headings and rules: left cell -> right cell.
std::map<std::string, std::string> rows_of_the_page() {
  std::map<std::string, std::string> rows;
  std::ifstream page(DP_ENGINES_PAGE);
  bool migration = false;
  for (std::string line; std::getline(page, line);) {
    if (line.rfind("## ", 0) == 0) migration = line.rfind("## Coming from", 0) == 0;
    if (!migration || line.rfind("| ", 0) != 0 || line.rfind("| there |", 0) == 0) continue;
    const std::size_t middle = line.find(" | ");
    rows[line.substr(2, middle - 2)] = line.substr(middle + 3, line.size() - middle - 5);
  }
  return rows;
}

constexpr const char* kRun = "run";

Words words(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

// Trains two steps with these additional flags.
void train(const std::string& flags, const Words& variables = {}, const Words& launcher = {}) {
  const TemporaryFolder folder;
  Program program(words("--dataset synthetic --model mlp -p 1 --max-steps 2 --threads-per-replica 1 --output-dir") +
                      Words{kRun} + words(flags),
                  folder.path(), variables, launcher);
  const Outcome outcome = program.wait();
  INFO(flags << ": " << outcome.err);
  CHECK(outcome.code == 0);
  CHECK(std::filesystem::exists(folder / kRun + "/summary.json"));
}
auto trains(const std::string& flags) {
  return [flags] { train(flags); };
}

const std::string kTwoRanks = "--engine ddp --cpu 2 -b 16 ";

void two_processes_by_environment() {
  const TemporaryFolder folder;
  const std::string port = free_port();
  std::vector<Program> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.emplace_back(
        words("--dataset synthetic --model mlp -b 16 --max-steps 2 --engine ddp --cpu 1 --output-dir run"),
        folder.path(), rank_variables(rank, 2, port));
  for (Program& rank : ranks) CHECK(rank.wait().code == 0);
}

void started_by_mpirun() {
  if (!std::filesystem::exists("/usr/bin/mpirun")) return;  // launchers_test.cpp reports a missing mpirun
  train("--engine ddp --cpu 1 -b 16",
        {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "OMPI_MCA_rmaps_base_oversubscribe=1"},
        {"/usr/bin/mpirun", "-np", "2"});
}

// The seven steps of the first table, on CPUs.
void seven_steps() {
  const Model model = models::mlp();
  DataParallel net(model, {.devices = cpus(2), .split = Split::chunk});
  const Batch batch = random_batch(model, 4);
  const Sgd sgd{.lr = 0.1f};
  const Tensor before = net.predict(batch.images).clone();
  const Tensor& out = net.forward(batch.images);
  const Loss loss = cross_entropy(out, batch.labels);
  net.backward(loss.grad);
  net.step(sgd);
  const Tensor after = net.predict(batch.images).clone();
  CHECK(relative_error(after, before) > 0);
  net.train_step(batch, sgd);
  CHECK(relative_error(net.predict(batch.images), after) > 0);
}

void weights_with_and_without_prefix() {
  const TemporaryFolder folder;
  DataParallel net(models::mlp(), {.devices = cpus(1)});
  NamedTensors prefixed;
  for (const NamedTensor& tensor : net.weights()) {
    CHECK(tensor.first.rfind("module.", 0) == std::string::npos);
    prefixed.push_back({"module." + tensor.first, tensor.second});
  }
  write_safetensors(folder / "weights.safetensors", prefixed);
  train("--cpu 1 --init " + (folder / "weights.safetensors"));
}

void a_world_of_mpi() {  // dp_train makes the same calls
  CHECK(!process_group_from_mpi());
  CHECK(!started_by_mpi());
}

// A row's flags as tried, and a function for what flags cannot express.
struct Trial {
  std::string flags;
  std::function<void()> more{};
};

const std::map<std::string, Trial> kTrials{
    {"`net = nn.DataParallel(net, device_ids=[0, 1])`", {"", seven_steps}},
    {"`out = net(x)` in training, gathered on device 0", {"", seven_steps}},
    {"`loss = F.cross_entropy(out, y); loss.backward()`", {"", seven_steps}},
    {"`optimizer.step()`", {"", seven_steps}},
    {"`net.eval(); net(x)`", {"", seven_steps}},
    {"chunks of `torch.chunk`", {"--cpu 2 --split chunk", seven_steps}},
    {"unlike GPUs: the slowest one sets the pace", {"--cpu 2 --split 3:1", trains("--cpu 2 --split auto")}},
    {"running statistics of replica 0", {"--cpu 2 --bn master", trains("--cpu 2 --bn pooled")}},
    {"`net.module.state_dict()` with or without `module.`", {"", weights_with_and_without_prefix}},
    {"`torchrun --nproc-per-node 4 train.py`", {"--engine ddp --cpu 2 -b 16", two_processes_by_environment}},
    {"`init_process_group(\"nccl\")` / `(\"gloo\")`", {kTwoRanks + "--comm host"}},
    {"`init_process_group(timeout=...)`", {kTwoRanks + "--timeout 60"}},
    {"batch size of one process", {"--engine ddp --cpu 2 --batch-size-per-gpu 8", trains(kTwoRanks)}},
    {"`DistributedSampler(shuffle=True, drop_last=False)` and `set_epoch`",
     {kTwoRanks + "--drop-last", trains(kTwoRanks)}},
    {"`SyncBatchNorm.convert_sync_batchnorm(net)`", {kTwoRanks + "--sync-bn"}},
    {"`with net.no_sync():` over k - 1 backwards", {kTwoRanks + "--grad-accum-steps 2"}},
    {"`bucket_cap_mb=25`", {kTwoRanks + "--bucket-mb 25"}},
    {"`clip_grad_norm_(net.parameters(), 1.0)`", {kTwoRanks + "--clip-grad-norm 1.0"}},
    {"`register_comm_hook(None, bf16_compress_hook)`; FSDP's `MixedPrecision(reduce_dtype=torch.bfloat16)`",
     {kTwoRanks + "--reduce-dtype bfloat16", trains("--cpu 2 --reduce-dtype bfloat16")}},
    {"`torch.autocast(\"cuda\", torch.bfloat16)`; with `torch.float16` and `GradScaler`", {""}},
    {"`if rank == 0: torch.save(...)`", {kTwoRanks + "--save-every 1,1steps"}},  // train() sets --output-dir
    {"`all_reduce` of the validation counts", {kTwoRanks}},
    {"`horovodrun -np 4 python train.py`, `mpirun -np 4 python train.py`", {"", started_by_mpirun}},
    {"`hvd.init(); hvd.rank(); hvd.size()`", {"", a_world_of_mpi}},
    {"`hvd.broadcast_parameters(net.state_dict(), root_rank=0)`", {kTwoRanks}},
    {"`hvd.DistributedOptimizer(opt)`", {kTwoRanks}},
    {"`DistributedOptimizer(opt, compression=hvd.Compression.fp16)`", {kTwoRanks + "--reduce-dtype bfloat16"}},
    {"`lr * hvd.size()`", {kTwoRanks + "--lr-scale linear"}},
    {"`LearningRateWarmupCallback(warmup_epochs=5)`", {kTwoRanks + "--lr-warmup-epochs 5"}},
    {"`backward_passes_per_step=k`", {kTwoRanks + "--grad-accum-steps 2"}},
    {"`HOROVOD_FUSION_THRESHOLD`", {kTwoRanks + "--bucket-mb 1"}},
    {"`HOROVOD_STALL_CHECK_TIME_SECONDS`", {kTwoRanks + "--timeout 60"}},
};

// Flags not tried here: they need GPUs, belong to torchrun, or are set by every trial.
const std::set<std::string> kElsewhere{"--gpus",       "--no-python", "--nproc-per-node", "--amp",
                                       "--output-dir", "--init",      "--engine",         "--amp-dtype"};

}  // namespace

TEST_CASE("migration: every row of the tables is tested with every flag that it names") {
  const auto rows = rows_of_the_page();
  CHECK(rows.size() == kTrials.size());
  const std::regex flag("--[a-z][a-z-]*");
  for (const auto& [there, here] : rows) {
    INFO(there);
    REQUIRE(kTrials.contains(there));
    const Words tried = words(kTrials.at(there).flags);
    for (auto at = std::sregex_iterator(here.begin(), here.end(), flag); at != std::sregex_iterator(); ++at) {
      const std::string name = at->str();
      INFO(name);
      const bool by_more = name == "--bn" || kElsewhere.contains(name);
      CHECK((by_more || std::find(tried.begin(), tried.end(), name) != tried.end()));
    }
  }
}

TEST_CASE("migration: every command of the tables runs") {
  std::set<std::string> done;
  for (const auto& [there, trial] : kTrials) {
    INFO(there);
    if (!trial.flags.empty() && done.insert(trial.flags).second) train(trial.flags);
    if (trial.more) trial.more();
  }
}
