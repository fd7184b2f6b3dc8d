#include <fcntl.h>
#include <sys/stat.h>

#include "checkpoint/files_support.h"
#include "checkpoint/memory_peak.h"
#include "checkpoint/scoped_file_ops.h"
#include "support/catch.h"

using namespace dp::test;
namespace fs = std::filesystem;

namespace {

// Saves a checkpoint, lets `spoil` change its folder, and expects loading to fail with `message`.
void expect_refusal(const std::string& message, const std::function<void(const std::string& folder)>& spoil) {
  INFO(message);
  UnsyncedOps unsynced;
  const ScopedFileOps scope(unsynced);
  const ScratchFolder scratch;
  fs::create_directory(scratch / "checkpoints");
  const std::string folder = scratch / "checkpoints/last";
  dp::save_checkpoint(folder, checkpoint_at(1));
  spoil(folder);
  const MemoryPeak peak;
  const Outcome outcome = outcome_of([&] { dp::load_checkpoint(folder); });
  CHECK(outcome.code == 3);
  CHECK_THAT(outcome.text, Catch::Contains(message));
  CHECK(outcome.text.find_first_of("\n\x1b") == std::string::npos);
  CHECK(dp::find_checkpoint(scratch.path()).empty());
  CHECK(peak.bytes() < (32 << 20));
}

void replace(const std::string& path, const std::string& from, const std::string& to) {
  std::string text = read_bytes(path);
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  write_bytes(path, text.replace(at, from.size(), to));
}

// Replaces a file and updates the manifest with a valid size and checksum, as an attacker could.
void forge(const std::string& folder, const std::string& name, const std::string& text) {
  write_bytes(folder + "/" + name, text);
  std::string manifest = read_bytes(folder + "/manifest.json");
  const std::size_t at = manifest.find("\"" + name + "\"");
  const std::size_t size_at = manifest.find(": ", manifest.find("bytes", at)) + 2;
  manifest.replace(size_at, manifest.find(',', size_at) - size_at, std::to_string(text.size()));
  write_bytes(folder + "/manifest.json", manifest);
  // The error message contains the expected checksum.
  const std::string message = outcome_of([&] { dp::load_checkpoint(folder); }).text;
  const std::size_t crc_at = manifest.find(": \"", manifest.find("crc32c", at)) + 3;
  const std::string marker = "has the checksum ";
  REQUIRE(message.find(marker) != std::string::npos);
  manifest.replace(crc_at, 8, message.substr(message.find(marker) + marker.size(), 8));
  write_bytes(folder + "/manifest.json", manifest);
}

}  // namespace

TEST_CASE("a checkpoint with a missing, truncated or linked file is rejected") {
  for (const std::string name : {"manifest.json", "model.safetensors", "optimizer.safetensors", "state.json"}) {
    expect_refusal(name + ": opening it failed", [&](const std::string& folder) { fs::remove(folder + "/" + name); });
    expect_refusal(name, [&](const std::string& folder) { fs::resize_file(folder + "/" + name, 20); });
    expect_refusal(name, [&](const std::string& folder) { fs::resize_file(folder + "/" + name, 0); });
    expect_refusal(name + ": is a symbolic link", [&](const std::string& folder) {
      fs::rename(folder + "/" + name, folder + "/elsewhere");
      fs::create_symlink("elsewhere", folder + "/" + name);
    });
    expect_refusal(name + ": is a folder", [&](const std::string& folder) {
      fs::remove(folder + "/" + name);
      fs::create_directory(folder + "/" + name);
    });
    expect_refusal(name + ": is not a regular file", [&](const std::string& folder) {
      fs::remove(folder + "/" + name);
      REQUIRE(::mkfifo((folder + "/" + name).c_str(), 0600) == 0);
    });
  }
  expect_refusal("No such file or directory", [](const std::string& folder) { fs::remove_all(folder); });
  expect_refusal("opening the checkpoint's folder failed", [](const std::string& folder) {
    fs::rename(folder, folder + "-");
    fs::create_directory_symlink("last", folder);  // links to itself
  });
  const ScratchFolder scratch;
  dp::save_checkpoint(scratch / "last", checkpoint_at(1));
  CHECK_THAT(outcome_of([&] { dp::load_checkpoint(scratch / std::string("last\0x", 6)); }).text,
             Catch::Contains("the path contains a zero byte"));
  expect_refusal("Not a directory", [](const std::string& folder) {
    fs::remove_all(folder);
    write_bytes(folder, "");
  });
}

TEST_CASE("any wrong byte of a checkpoint's files is detected") {
  const ScratchFolder scratch;
  const std::string folder = scratch / "last";
  dp::save_checkpoint(folder, checkpoint_at(1));
  for (const std::string name : {"model.safetensors", "optimizer.safetensors", "state.json"}) {
    const std::string whole = read_bytes(folder + "/" + name);
    for (std::size_t at = 0; at < whole.size(); at += 7) {
      std::string wrong = whole;
      wrong[at] = static_cast<char>(wrong[at] ^ (1 << at % 8));
      write_bytes(folder + "/" + name, wrong);
      CHECK_THAT(outcome_of([&] { dp::load_checkpoint(folder); }).text, Catch::Contains("has the checksum"));
    }
    write_bytes(folder + "/" + name, whole);
  }
  CHECK(is_checkpoint_at(dp::load_checkpoint(folder), 1));
}

TEST_CASE("the updates of a moving average are read back, and without a number they are the steps") {
  UnsyncedOps unsynced;
  const ScopedFileOps scope(unsynced);
  const ScratchFolder scratch;
  const std::string folder = scratch / "last";
  dp::Checkpoint checkpoint = checkpoint_at(9);
  checkpoint.average = checkpoint.weights;
  checkpoint.average_updates = 40;
  dp::save_checkpoint(folder, checkpoint);
  CHECK(dp::load_checkpoint(folder).average_updates == 40);
  const std::string whole = read_bytes(folder + "/ema.safetensors");
  const std::string field = "\"updates\":\"40\"";
  REQUIRE(whole.find(field) != std::string::npos);
  const auto with = [&](const std::string& other) {
    std::string text = whole;
    return text.replace(whole.find(field), field.size(), other);
  };
  forge(folder, "ema.safetensors", with("\"updaten\":\"40\""));  // as an earlier version's, which has no such field
  CHECK(dp::load_checkpoint(folder).average_updates == 9);
  for (const char* count : {"xy", "-1", "--", "4x", "x4", "4 ", " 4"}) {
    forge(folder, "ema.safetensors", with(std::string("\"updates\":\"") + count + "\""));
    CHECK_THAT(outcome_of([&] { dp::load_checkpoint(folder); }).text,
               Catch::Contains("ema.safetensors: updates is '") && Catch::Contains("not a count"));
  }
}

TEST_CASE("the updates of an optimizer must be a count") {
  UnsyncedOps unsynced;
  const ScopedFileOps scope(unsynced);
  const ScratchFolder scratch;
  const std::string folder = scratch / "last";
  dp::save_checkpoint(folder, checkpoint_at(40));
  CHECK(dp::load_checkpoint(folder).optimizer.updates == 40);
  const std::string whole = read_bytes(folder + "/optimizer.safetensors");
  const std::string field = "\"updates\":\"40\"";
  REQUIRE(whole.find(field) != std::string::npos);
  for (const auto& [other, shown] : {std::pair("\"updates\":\"-1\"", "'-1'"), std::pair("\"updates\":\"4x\"", "'4x'"),
                                     std::pair("\"updaten\":\"40\"", "''")}) {
    std::string text = whole;
    forge(folder, "optimizer.safetensors", text.replace(whole.find(field), field.size(), other));
    const Outcome outcome = outcome_of([&] { dp::load_checkpoint(folder); });
    CHECK(outcome.code == 3);
    CHECK(outcome.text == std::string("optimizer.safetensors: updates is ") + shown + ", which is not a count");
  }
}

TEST_CASE("a wrong byte of a moving average, or beyond the first MiB of a file, is detected") {
  UnsyncedOps unsynced;
  const ScopedFileOps scope(unsynced);
  const ScratchFolder scratch;
  const std::string folder = scratch / "checkpoints/last";
  fs::create_directory(scratch / "checkpoints");
  dp::Checkpoint checkpoint = checkpoint_at(1);
  checkpoint.average = checkpoint.weights;
  checkpoint.weights.emplace_back("long", dp::Tensor(dp::Shape{(3 << 20) / 4}));
  dp::save_checkpoint(folder, checkpoint);
  CHECK(dp::find_checkpoint(scratch.path()) == folder);
  const auto expect_found = [&](const std::string& name, std::size_t at) {
    INFO(name << " at " << at);
    const std::string whole = read_bytes(folder + "/" + name);
    std::string wrong = whole;
    wrong[at] = static_cast<char>(wrong[at] ^ 1);
    write_bytes(folder + "/" + name, wrong);
    CHECK_THAT(outcome_of([&] { dp::load_checkpoint(folder); }).text, Catch::Contains(name + ": has the checksum"));
    CHECK(dp::find_checkpoint(scratch.path()).empty());
    write_bytes(folder + "/" + name, whole);
  };
  const auto size = [&](const std::string& name) { return fs::file_size(folder + "/" + name); };
  for (std::size_t at = 0; at < size("ema.safetensors"); at += 41) expect_found("ema.safetensors", at);
  for (const std::size_t at : {std::size_t{1} << 20, std::size_t{2} << 20, size("model.safetensors") - 1})
    expect_found("model.safetensors", at);
  CHECK(dp::find_checkpoint(scratch.path()) == folder);
  for (const std::string name : {"model.safetensors", "optimizer.safetensors", "ema.safetensors"}) {
    INFO(name);
    const std::string whole = read_bytes(folder + "/" + name);
    forge(folder, name, "no tensors");
    CHECK_THAT(outcome_of([&] { dp::load_checkpoint(folder); }).text, Catch::Contains("not a safetensors file"));
    CHECK(dp::find_checkpoint(scratch.path()).empty());
    forge(folder, name, whole);
  }
  CHECK(dp::find_checkpoint(scratch.path()) == folder);
}

TEST_CASE("hostile manifests are rejected") {
  const auto edit = [](const std::string& message, const std::string& from, const std::string& to) {
    expect_refusal(message, [&](const std::string& folder) { replace(folder + "/manifest.json", from, to); });
  };
  const auto whole = [](const std::string& message, const std::string& text) {
    expect_refusal(message, [&](const std::string& folder) { write_bytes(folder + "/manifest.json", text); });
  };
  edit("lists '../../etc/passwd', which is not a checkpoint file", "\"state.json\"", "\"../../etc/passwd\"");
  edit("lists '\\x1b[2J'", "\"state.json\"", "\"\\u001b[2J\"");
  edit("does not list model.safetensors", "model.safetensors", "state.json");
  edit("is not of the format", "dp-checkpoint-1", "dp-checkpoint-2");
  edit("has no size for", "\"bytes\": ", "\"bytes\": -");
  edit("has no size for", "\"bytes\"", "\"byte\"");
  edit("has no checksum for", "\"crc32c\": \"", "\"crc32c\": \"z");
  edit("has no checksum for", "\"crc32c\"", "\"crc\"");
  edit("the manifest says 1", "\"bytes\": ", "\"bytes\": 1");
  whole("is not valid JSON", "{");
  whole("is not valid JSON", "");
  whole("is not a JSON object", "[]");
  whole("is not of the format", "{}");
  whole("lists no files", R"({"format":"dp-checkpoint-1","files":[]})");
  whole("lists no files", R"({"format":"dp-checkpoint-1"})");
  whole("has no size for state.json", R"({"format":"dp-checkpoint-1","files":{"state.json":1}})");
  whole("zero bytes", std::string("{}\0{}", 5));
  whole("nested more than four deep", std::string(60000, '['));
  whole("nested more than four deep", R"({"a":{"a":{"a":{"a":{"a":1}}}}})");
  whole("is not of the format", R"({"a":{"a":{"a":{"a":1}}}})");
  whole("at most 65536 are expected", std::string(65537, ' '));
  whole("is not valid JSON", "{\"format\":1e999}");
}

TEST_CASE("a state that could not be read back is not saved") {
  const ScratchFolder scratch;
  const std::string folder = scratch / "last";
  dp::save_checkpoint(folder, checkpoint_at(1));
  const auto refused = [&](const std::string& part, const std::function<void(dp::TrainState&)>& spoil) {
    dp::Checkpoint checkpoint = checkpoint_at(2);
    spoil(checkpoint.state);
    const Outcome outcome = outcome_of([&] { dp::save_checkpoint(folder, checkpoint); });
    CHECK(outcome.code == 2);
    CHECK_THAT(outcome.text, Catch::Contains(part));
    CHECK(is_checkpoint_at(dp::load_checkpoint(folder), 1));
  };
  refused("'step' is not below 2^53", [](dp::TrainState& state) { state.step = std::int64_t{1} << 53; });
  refused("'step' is not a whole number of at least 0", [](dp::TrainState& state) { state.step = -1; });
  refused("'config': is not valid JSON", [](dp::TrainState& state) { state.config = "nonsense"; });
  CHECK(count_hidden(scratch.path()) == 0);
}

TEST_CASE("hostile states with a valid checksum are rejected") {
  const auto edit = [](const std::string& message, const std::string& from, const std::string& to) {
    expect_refusal(message, [&](const std::string& folder) {
      std::string text = read_bytes(folder + "/state.json");
      const std::size_t at = text.find(from);
      REQUIRE(at != std::string::npos);
      forge(folder, "state.json", text.replace(at, from.size(), to));
    });
  };
  edit("'step' is not a whole number of at least 0", "\"step\": 1", "\"step\": -1");
  edit("'step' is not a whole number of at least 0", "\"step\": 1", "\"step\": 1.5");
  for (const char* large : {"9007199254740992", "9223372036854775807", "9223372036854775808"})
    for (const char* count : {"step", "skipped", "epoch", "batch_in_epoch", "global_batch"}) {
      const std::string key = std::string("\"") + count + "\": ";
      edit(std::string("'") + count + "' is not below 2^53", key, key + large + ", \"was\": ");
    }
  for (const char* config : {"nonsense", "{\\\"lr\\\": 0.1", "{\\\"lr\\\": 0.1} x"})
    edit("'config': is not valid JSON", "{\\\"lr\\\": 0.1}", config);
  for (const char* config : {"[]", "7", "\\\"x\\\"", "null"})
    edit("'config': is not a JSON object", "{\\\"lr\\\": 0.1}", config);
  edit("'config': is nested more than four deep", "{\\\"lr\\\": 0.1}", std::string(100000, '['));
  edit("has no 'epoch'", "\"epoch\"", "\"epochs\"");
  edit("'model' is not a string", "\"mlp\"", "7");
  edit("'best_top1' is not a number", "\"best_top1\": ", "\"best_top1\": null, \"was\": ");
  const std::string more = "\"loss_scale_steps\": 1, \"step\": 1";
  edit("'loss_scale' is not a positive float32 number", "\"step\": 1", "\"loss_scale\": 0, " + more);
  edit("'loss_scale' is not a positive float32 number", "\"step\": 1", "\"loss_scale\": 1e300, " + more);
  edit("'loss_scale' is not a positive float32 number", "\"step\": 1", "\"loss_scale\": -2, " + more);
  edit("'loss_scale' is not a number", "\"step\": 1", "\"loss_scale\": \"8\", " + more);
  edit("has no 'loss_scale_steps'", "\"step\": 1", "\"loss_scale\": 8, \"step\": 1");
  edit("'loss_scale_steps' is not below 2^32", "\"step\": 1",
       "\"loss_scale\": 8, \"loss_scale_steps\": 4294967296, \"step\": 1");
  edit("is not valid JSON", "{", "");
  edit("nested more than four deep", "\"mlp\"", std::string(100000, '['));
}
