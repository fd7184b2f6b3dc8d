// Images that cannot be read: a run that they end, runs that skip them, and check-data.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "apps/idx_files.h"
#include "apps/run_program.h"
#include "support/catch.h"

namespace {

namespace fs = std::filesystem;
using namespace dp::test;

constexpr int kImages = 8;  // of each class

std::string image(const char* name) { return read_text(std::string(DP_SOURCE "/tests/fuzz/image_corpus/") + name); }

// Two classes of `kImages` training images, and two test images of each.
void write_images(const TemporaryFolder& temp) {
  const std::string first = image("jpeg_420"), second = image("png_rgba");
  for (const char* name : {"a", "b"}) {
    for (const char* part : {"train", "val"}) fs::create_directories(temp / ("set/" + std::string(part) + "/" + name));
    for (int i = 0; i < kImages; ++i)
      write_text(temp / ("set/train/" + std::string(name) + "/" + std::to_string(i) + ".jpg"),
                 *name == 'a' ? first : second);
    for (int i = 0; i < 2; ++i)
      write_text(temp / ("set/val/" + std::string(name) + "/" + std::to_string(i) + ".jpg"),
                 *name == 'a' ? second : first);
  }
}

void truncate(const std::string& file) { fs::resize_file(file, fs::file_size(file) / 2); }

const Words kData{"--dataset", "imagefolder", "--data-path", "set"};
const Words kTrain = kData + Words{"--model", "mlp", "-b", "4", "--epochs", "2", "--save-every", "0", "--no-shuffle"};
const Words kOne{"--cpu", "1", "--threads-per-replica", "1"};

nlohmann::json summary_of(const TemporaryFolder& temp, const std::string& run) {
  return nlohmann::json::parse(read_text(temp / (run + "/summary.json")));
}

TEST_CASE("a bad image ends a run with its finished steps saved, and the resumed run reaches the same bits",
          "[processes]") {
  const TemporaryFolder temp;
  write_images(temp);
  REQUIRE(run_dp_train(kTrain + kOne + Words{"--output-dir", "whole"}, temp.path()).code == 0);
  const std::string bad = temp / "set/train/b/3.jpg", good = read_text(bad);
  truncate(bad);
  const Outcome failed = run_dp_train(kTrain + kOne + Words{"--output-dir", "run"}, temp.path());
  INFO(failed.err);
  CHECK(failed.code == 3);
  CHECK(failed.err.find("set/train/b/3.jpg") != std::string::npos);
  CHECK(failed.out.find("the finished steps are saved at step 2; continue with --resume run --cpu 1\n") !=
        std::string::npos);
  write_text(bad, good);
  REQUIRE(run_dp_train({"--resume", "run", "--cpu", "1", "--threads-per-replica", "1"}, temp.path()).code == 0);
  CHECK(summary_of(temp, "run")["weights_sha256"] == summary_of(temp, "whole")["weights_sha256"]);
}

TEST_CASE("a bad image of one rank ends all ranks with the end of the run recorded", "[processes]") {
  for (const char* file : {"set/train/b/2.jpg", "set/train/b/3.jpg"}) {  // of rank 0, of rank 1
    const TemporaryFolder temp;
    write_images(temp);
    truncate(temp / file);
    const Words ranks{"--engine", "ddp", "--cpu", "2", "--threads-per-replica", "1", "--output-dir", "run"};
    const Outcome failed = run_dp_train(kTrain + ranks, temp.path());
    INFO(file << '\n' << failed.out << failed.err);
    CHECK(failed.code == 3);
    CHECK_THAT(failed.out, Catch::Contains("the finished steps are saved at step ") &&
                               Catch::Contains("; continue with --resume run "));
    CHECK_THAT(failed.err, Catch::Contains("check-data lists all bad images; --bad-images skip skips them"));
    CHECK_THAT(summary_of(temp, "run")["end"].get<std::string>(),
               Catch::StartsWith("error: ") && Catch::Contains(file));
    const auto parts = nlohmann::json::parse(read_text(temp / "run/env.json"))["parts"];
    CHECK(parts.back()["end"] == summary_of(temp, "run")["end"]);
  }
}

TEST_CASE("bad images that are skipped are listed once, and the bits do not depend on layout or resumption",
          "[processes]") {
  const TemporaryFolder temp;
  write_images(temp);
  truncate(temp / "set/train/a/0.jpg");
  fs::remove(temp / "set/train/b/7.jpg");
  fs::create_symlink("nowhere", temp / "set/train/b/7.jpg");
  write_text(temp / "set/val/b/1.jpg", "<html>404</html>");
  const Words skip = kTrain + Words{"--bad-images", "skip", "--lr-scheduler", "constant", "--threads-per-replica", "1"};
  const Words one{"--cpu", "1", "--logical-shards", "2"}, ranks_of_one{"--engine", "ddp", "--cpu", "2"};
  const Outcome whole = run_dp_train(skip + one + Words{"--output-dir", "whole"}, temp.path());
  INFO(whole.err);
  REQUIRE(whole.code == 0);
  CHECK(whole.out.find("3 bad images were skipped, listed in whole/bad_images.txt") != std::string::npos);
  CHECK(whole.out.find("Bad images: 3") != std::string::npos);
  const auto summary = summary_of(temp, "whole");
  CHECK(summary["bad_images"] == 3);
  const std::string listed = read_text(temp / "whole/bad_images.txt");
  for (const char* name : {"set/train/a/0.jpg", "set/train/b/7.jpg", "set/val/b/1.jpg"}) {
    INFO(name << " in " << listed);
    CHECK(listed.find(name) != std::string::npos);
    CHECK(listed.find(name) == listed.rfind(name));
    CHECK(summary["bad_image_list"].dump().find(name) != std::string::npos);
  }
  REQUIRE(run_dp_train(skip + one + Words{"--max-steps", "3", "--output-dir", "parts"}, temp.path()).code == 0);
  REQUIRE(run_dp_train({"--resume", "parts", "--max-steps", "8", "--cpu", "2"}, temp.path()).code == 0);
  CHECK(read_text(temp / "parts/bad_images.txt") == listed);
  CHECK(summary_of(temp, "parts")["weights_sha256"] == summary["weights_sha256"]);
  const Outcome ranks = run_dp_train(skip + ranks_of_one + Words{"--output-dir", "ranks"}, temp.path());
  INFO(ranks.err);
  CHECK(ranks.code == 0);
  CHECK(read_text(temp / "ranks/bad_images.txt") == listed);
  CHECK(summary_of(temp, "ranks")["test_loss"].get<double>() == Approx(summary["test_loss"].get<double>()));
}

TEST_CASE("a class whose images are all bad ends a run that skips bad images") {
  const TemporaryFolder temp;
  write_images(temp);
  for (int i = 0; i < kImages; ++i) write_text(temp / ("set/train/a/" + std::to_string(i) + ".jpg"), "");
  const Outcome outcome = run_dp_train(kTrain + kOne + Words{"--bad-images", "skip"}, temp.path());
  CHECK(outcome.code == 3);
  CHECK(outcome.err.find("no other image of its class can be read either") != std::string::npos);
}

TEST_CASE("skipping bad images is refused for data sets whose files are checked at the start") {
  const TemporaryFolder temp;
  check_bad_input(
      {{"--dataset", "digits", "--bad-images", "skip", "--dry-run"}, 2, {"--dataset imagefolder or imagelist"}},
      temp.path());
}

TEST_CASE("check-data lists every bad image, and reads every data set") {
  const TemporaryFolder temp;
  write_images(temp);
  const Outcome good = run_dp_train(Words{"check-data"} + kData, temp.path());
  INFO(good.err);
  CHECK(good.code == 0);
  CHECK(good.out.find("20 images read, 0 of them bad") != std::string::npos);
  CHECK_THAT(good.out, Catch::Matches("(.|\n)*training images: mean 0\\.\\d{4}(, 0\\.\\d{4}){2}, deviation 0(.|\n)*"));
  truncate(temp / "set/train/a/5.jpg");
  truncate(temp / "set/train/b/0.jpg");
  write_text(temp / "set/val/b/1.jpg", "");
  for (const Words& more : {Words{}, Words{"-j", "1"}, Words{"-j", "7", "--quiet"}}) {
    const Outcome bad = run_dp_train(Words{"check-data"} + kData + more, temp.path());
    INFO(bad.out << bad.err);
    CHECK(bad.code == 3);
    std::size_t at = 0;
    for (const char* name : {"set/train/a/5.jpg: ", "set/train/b/0.jpg: ", "set/val/b/1.jpg: "}) {
      CHECK(bad.out.find(name, at) != std::string::npos);
      at = bad.out.find(name, at);
    }
    CHECK((bad.out.find("20 images read, 3 of them bad") != std::string::npos) == (more.size() < 3));
  }
  write_tiny_mnist(temp.path());
  CHECK(run_dp_train({"check-data", "--dataset", "mnist", "--data-path", "."}, temp.path()).code == 0);
  CHECK(run_dp_train({"check-data", "--dataset", "synthetic", "--images", "99"}, temp.path()).code == 0);
  fs::resize_file(temp / kTrainImages, 500);
  CHECK(run_dp_train({"check-data", "--dataset", "mnist", "--data-path", "."}, temp.path()).code == 3);
  check_bad_input({{"check-data", "--epochs", "3"}, 2, {"epochs"}}, temp.path());
}

TEST_CASE("a run with --val-split trains without val/, with --image-size on small images, and keeps both when resumed",
          "[processes]") {
  const TemporaryFolder temp;
  write_images(temp);
  fs::remove_all(temp / "set/val");
  const Words small{"--image-size", "16", "--val-split", "0.25", "--output-dir", "run"};
  const Outcome trained = run_dp_train(kTrain + kOne + small + Words{"--max-steps", "3"}, temp.path());
  INFO(trained.out << trained.err);
  REQUIRE(trained.code == 0);
  CHECK_THAT(read_text(temp / "run/config.toml"),
             Catch::Contains("image-size = 16\n") && Catch::Contains("val-split = 0.25\n"));
  CHECK(fs::file_size(temp / "run/checkpoints/last/model.safetensors") < (1 << 20));  // 77 MB for 224x224
  const Outcome resumed = run_dp_train({"--resume", "run", "--cpu", "1", "--max-steps", "6"}, temp.path());
  INFO(resumed.out << resumed.err);
  CHECK(resumed.code == 0);
}

}  // namespace
