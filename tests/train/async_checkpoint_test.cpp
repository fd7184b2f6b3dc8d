// Checkpoints that are written while the run goes on.
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/scoped_file_ops.h"
#include "support/catch.h"
#include "support/patience.h"
#include "train/expect_error.h"
#include "train/tiny_run.h"

namespace {

using namespace dp;
using dp::test::kPatience;
using dp::test::ScopedFileOps;
using dp::test::TemporaryFolder;
using dp::test::tiny_options;
using dp::test::tiny_run;
using dp::test::UnsyncedOps;
namespace fs = std::filesystem;

// Holds every thread but the one that made it in its first fsync until release(). Ends the program if that takes
// kPatience: a run that waits for the write would never release it.
class HeldWrites final : public UnsyncedOps {
 public:
  int fsync(int) override {
    if (std::this_thread::get_id() == maker_) return 0;
    std::unique_lock lock(mutex_);
    ++held_;
    changed_.notify_all();
    if (!changed_.wait_for(lock, kPatience, [&] { return released_; })) std::abort();
    return error_ == 0 ? 0 : (errno = error_, -1);
  }
  void release(int error = 0) {
    const std::scoped_lock lock(mutex_);
    released_ = true, error_ = error;
    changed_.notify_all();
  }
  void wait_until_held() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, kPatience, [&] { return held_ > 0; })) std::abort();
  }

 private:
  const std::thread::id maker_ = std::this_thread::get_id();
  std::mutex mutex_;
  std::condition_variable changed_;
  int held_ = 0, error_ = 0;
  bool released_ = false;
};

std::int64_t saved_step(const TemporaryFolder& temp) { return load_checkpoint(temp / "checkpoints/last").state.step; }

TEST_CASE("a run trains on while a checkpoint is written, and the checkpoint has the state of its step") {
  const TemporaryFolder temp;
  TrainerOptions options = tiny_options(temp.path());
  options.save_every_steps = 2;
  HeldWrites writes;
  const ScopedFileOps scoped(writes);
  std::vector<std::int64_t> saved;
  std::int64_t step = 0;
  TrainerCallbacks callbacks;
  callbacks.on_step = [&](const StepReport& report) {
    step = report.step;
    if (step != 4) return;  // the save of step 2 is held; that of step 4 waits for it
    writes.wait_until_held();
    CHECK_FALSE(fs::exists(temp / "checkpoints/last"));
    writes.release();
  };
  callbacks.on_checkpoint = [&](const std::string& folder) {
    const std::int64_t of = load_checkpoint(folder).state.step;
    CHECK(of <= step);
    saved.push_back(of);
  };
  const RunSummary summary = tiny_run(options, callbacks);
  CHECK(saved.front() == 2);
  CHECK(std::ranges::is_sorted(saved));
  CHECK(saved_step(temp) == 21);
  CHECK(weights_sha256(load_checkpoint(temp / "checkpoints/last").weights) == summary.weights_sha256);
  CHECK(summary.weights_sha256 == tiny_run(tiny_options()).weights_sha256);
}

TEST_CASE("the tensors of a checkpoint have the same bytes, whether or not the run waits for the write") {
  const auto run = [](const TemporaryFolder& temp, bool sync) {
    TrainerOptions options = tiny_options(temp.path());
    options.optimizer = AdamW{.lr = 0.01f};
    options.parallel.ema_decay = 0.9;
    options.save_every_steps = 2;
    options.checkpoint_hist = 99;
    options.sync_checkpoints = sync;
    tiny_run(options);
  };
  const TemporaryFolder with, without;
  run(with, true);
  run(without, false);
  const auto bytes = [](const std::string& file) {
    std::ifstream in(file, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  int compared = 0;
  for (const fs::directory_entry& folder : fs::directory_iterator(with / "checkpoints"))
    for (const char* const file : {"/model.safetensors", "/optimizer.safetensors", "/ema.safetensors"}) {
      const std::string name = folder.path().filename().string() + file;
      INFO(name);
      const std::string has = bytes(with / ("checkpoints/" + name));
      CHECK_FALSE(has.empty());
      CHECK(has == bytes(without / ("checkpoints/" + name)));
      ++compared;
    }
  CHECK(compared >= 3 * 12);  // `last`, and those of steps 2, 4, ... 20, and 21
}

TEST_CASE("a write that fails beside training is a notice, and the next save replaces the checkpoint") {
  const TemporaryFolder temp;
  TrainerOptions options = tiny_options(temp.path());
  options.epochs = 1;
  options.save_every_steps = 2;
  HeldWrites writes;
  std::string said;
  TrainerCallbacks callbacks;
  const ScopedFileOps scoped(writes);
  callbacks.on_step = [&](const StepReport& report) {
    if (report.step != 3) return;
    writes.wait_until_held();
    writes.release(ENOSPC);
  };
  callbacks.on_message = [&](const std::string& text) {
    said += text + "\n";
    if (text.find("was not written") != std::string::npos) writes.release();  // there is room again
  };
  tiny_run(options, callbacks);
  CHECK(said.find("this checkpoint was not written: ") != std::string::npos);
  CHECK(said.find("No space left") != std::string::npos);
  CHECK(saved_step(temp) == 7);
}

TEST_CASE("an error that ends the run lets a write in flight finish") {
  const TemporaryFolder temp;
  TrainerOptions options = tiny_options(temp.path());
  options.save_every_steps = 2;
  HeldWrites writes;
  const ScopedFileOps scoped(writes);
  TrainerCallbacks callbacks;
  callbacks.on_step = [&](const StepReport& report) {
    if (report.step != 3) return;
    writes.wait_until_held();
    writes.release();
    throw std::runtime_error("the embedder is broken");
  };
  CHECK_THROWS_WITH(tiny_run(options, callbacks), "the embedder is broken");
  CHECK(saved_step(temp) == 3);  // then the finished steps are saved
}

TEST_CASE("weights with NaN are found by the writing thread, and never replace a checkpoint") {
  const TemporaryFolder temp;
  TrainerOptions options = tiny_options(temp.path());
  options.save_every_steps = 3;
  Trainer trainer(dp::test::tiny_model(), dp::test::tiny_digits(), options);
  TrainerCallbacks callbacks;
  callbacks.on_step = [&](const StepReport& report) {
    if (report.step != 6) return;
    NamedTensors weights = trainer.net().weights();
    for (auto& [name, tensor] : weights)
      if (name == "bn.running_var") tensor.data<float>()[1] = NAN;  // no training step reads it
    trainer.net().set_weights(weights);
  };
  dp::test::expect_error(ErrorCode::nonfinite, {"bn.running_var", temp / "checkpoints/last"},
                         [&] { trainer.run(callbacks); });
  CHECK(saved_step(temp) == 3);
}

}  // namespace
