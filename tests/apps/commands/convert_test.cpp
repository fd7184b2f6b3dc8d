// dp_train convert, and --init with a file of torch.save.
#include <filesystem>

#include "apps/run_program.h"
#include "checkpoint/torch_files.h"
#include "dp/dp.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

namespace {

namespace fs = std::filesystem;
using namespace dp::test;
using Catch::Contains;

const Words kTinyRun{"--dataset", "synthetic", "--images", "32",    "--input", "1,28,28", "--classes",
                     "10",        "--model",   "mlp",      "--cpu", "1",       "-b",      "16"};

// What torch.save writes for {'state_dict': {'module.' + name: tensor, ...}, 'epoch': 3}.
std::string pytorch_checkpoint(const dp::NamedTensors& weights) {
  std::string pairs;
  std::vector<std::pair<std::string, std::string>> entries{{"f/data.pkl", ""}};
  for (const auto& [name, tensor] : weights) {
    const std::string key = std::to_string(entries.size());
    std::vector<std::int32_t> sizes, strides;
    auto stride = static_cast<std::int32_t>(tensor.numel());
    for (const std::int64_t size : tensor.shape().dims()) {
      sizes.push_back(static_cast<std::int32_t>(size));
      strides.push_back(stride /= static_cast<std::int32_t>(size));
    }
    const std::string storage = storage_of(static_cast<std::int32_t>(tensor.numel()), "FloatStorage", key);
    pairs += pickle_text("module." + name) + tensor_of_storage(storage, 0, sizes, strides);
    entries.emplace_back("f/data/" + key, std::string(static_cast<const char*>(tensor.raw()), tensor.bytes()));
  }
  entries[0].second =
      "\x80\2" + pickle_dict(pickle_text("epoch") + pickle_number(3) + pickle_text("state_dict") + pickle_dict(pairs)) +
      ".";
  return zip_of(entries);
}

}  // namespace

TEST_CASE("convert writes the tensors of a file of torch.save and prints what was changed") {
  const TemporaryFolder temp;
  const Outcome done = run_dp_train({"convert", torch_file_path("zip.pth"), "-o", "out.safetensors"}, temp.path());
  INFO(done.err);
  CHECK(done.code == 0);
  CHECK(done.out ==
        "converted from bfloat16 to float32 ('bfloat')\n"
        "converted from bool to uint8 ('bool')\n"
        "converted from float16 to float32 ('half')\n"
        "converted from int16 to int32 ('short')\n"
        "converted from int8 to int32 ('char')\n"
        "out.safetensors: 15 tensors, 79 values\n");
  CHECK(dp::weights_sha256(dp::read_safetensors(temp / "out.safetensors")) ==
        dp::weights_sha256(dp::read_torch_file(torch_file_path("zip.pth"))));
  const Outcome entry = run_dp_train(
      {"convert", torch_file_path("checkpoint.pth"), "--entry", "model", "-o", "model.safetensors"}, temp.path());
  CHECK(entry.code == 0);
  CHECK_THAT(entry.out, Contains("'model' of the checkpoint read\npassed over: 'model_ema', 'optimizer'") &&
                            Contains("model.safetensors: 7 tensors, "));
}

TEST_CASE("convert refuses to overwrite what it reads, and leaves an old file as it is") {
  const TemporaryFolder temp;
  fs::copy_file(torch_file_path("zip.pth"), temp / "a.safetensors");
  fs::create_directory(temp / "run");
  write_text(temp / "old.safetensors", "old");
  for (const BadInput& bad :
       {BadInput{{"convert", "a.safetensors", "-o", "./a.safetensors"}, 2, {"is the file that is read"}},
        BadInput{{"convert", "run", "-o", "run/a/b.safetensors"}, 2, {"is inside the folder that is read"}},
        BadInput{{"convert", "a.safetensors", "-o", "a.pth"}, 2, {"end its name in .safetensors"}},
        BadInput{{"convert", "a.safetensors"}, 2, {"--output"}},
        BadInput{{"--lr", "1", "convert", "a.safetensors", "-o", "b.safetensors"}, 2, {"no effect on convert"}},
        BadInput{{"convert", "a.safetensors", "--entry", "ema", "-o", "old.safetensors"}, 3, {"no state dict 'ema'"}},
        BadInput{{"convert", torch_file_path("module.pth"), "-o", "old.safetensors"}, 3, {"module.pth", "Sequential"}},
        BadInput{{"convert", "run", "-o", "old.safetensors"}, 3, {"nor a checkpoint"}},
        BadInput{{"convert", "none.pth", "-o", "old.safetensors"}, 3, {"none.pth"}},
        BadInput{{"convert", "a.safetensors", "-o", "none/b.safetensors"}, 7, {"none/"}}})
    check_bad_input(bad, temp.path());
  CHECK(read_text(temp / "old.safetensors") == "old");
}

TEST_CASE("convert takes the weights of a run, and --init those of a checkpoint of PyTorch") {
  const TemporaryFolder temp;
  const Outcome run =
      run_dp_train(kTinyRun + Words{"--epochs", "1", "--output-dir", "runs", "--experiment", "one"}, temp.path());
  INFO(run.err);
  REQUIRE(run.code == 0);
  const Outcome converted = run_dp_train({"convert", "runs/one", "-o", "w.safetensors"}, temp.path());
  CHECK(converted.code == 0);
  CHECK_THAT(converted.out, Contains("read from runs/one/checkpoints/best/model.safetensors\n"));
  const dp::NamedTensors weights = dp::read_safetensors(temp / "w.safetensors");
  CHECK(dp::weights_sha256(weights) ==
        dp::weights_sha256(dp::read_safetensors(temp / "runs/one/checkpoints/best/model.safetensors")));
  CHECK(dp::read_trained_model(temp / "w.safetensors").classes ==
        dp::read_trained_model(temp / "runs/one").classes);  // its metadata are kept

  write_text(temp / "w.pth", pytorch_checkpoint(weights));
  const Outcome again = run_dp_train({"convert", "w.pth", "-o", "again.safetensors"}, temp.path());
  CHECK_THAT(again.out, Contains("'module.' stripped from names"));
  CHECK(dp::weights_sha256(dp::read_safetensors(temp / "again.safetensors")) == dp::weights_sha256(weights));
  const auto evaluated = [&](const std::string& init) {
    const Outcome outcome = run_dp_train(kTinyRun + Words{"--evaluate", "--init", init}, temp.path());
    CHECK(outcome.code == 0);
    return outcome;
  };
  const Outcome of_pth = evaluated("w.pth");
  CHECK_THAT(of_pth.out + of_pth.err,
             Contains("'state_dict' of the checkpoint read") && Contains("passed over: 'epoch'"));
  const auto result = [](const std::string& out) { return out.substr(out.find("Test:")); };
  CHECK(result(of_pth.out) == result(evaluated("again.safetensors").out));
}
