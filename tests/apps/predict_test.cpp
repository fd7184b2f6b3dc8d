// dp_train predict: where paths come from, what it prints and writes, and how it ends.
#include <sys/stat.h>

#include <csignal>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <tuple>

#include "apps/run_program.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

using namespace dp::test;

namespace {

namespace fs = std::filesystem;

const Words kOne{"--cpu", "1", "--threads-per-replica", "1"};

std::string corpus(const std::string& name) { return DP_SOURCE "/tests/fuzz/image_corpus/" + name; }

void copy(const std::string& image, const std::string& file) {
  fs::create_directories(fs::path(file).parent_path());
  fs::copy_file(corpus(image), file);
}

const std::map<std::string, Words> kTrain{{"cat", {"jpeg_420", "png_rgb"}}, {"dog", {"jpeg_444", "webp_lossy"}}};
const std::map<std::string, Words> kTest{{"cat", {"jpeg_420", "jpeg_422", "png_rgba", "webp_lossless"}},
                                         {"dog", {"jpeg_444", "png_palette", "jpeg_grey"}}};

// Trains a small network on image files: the run folder is `run`, the test images are in set/val.
void train(const TemporaryFolder& temp) {
  for (const auto& [part, classes] : {std::pair("train", kTrain), std::pair("val", kTest)})
    for (const auto& [name, images] : classes)
      for (const std::string& image : images)
        copy(image, temp / ("set/" + std::string(part) + "/" + name + "/" + image + ".jpg"));
  const Outcome trained =
      run_dp_train(Words{"--dataset", "imagefolder", "--data-path", "set", "--image-size", "32", "--crop-pct", "0.7",
                         "--model", "mlp", "-b", "2", "--epochs", "3", "--lr", "0.01", "--output-dir", "run"} +
                       kOne,
                   temp.path());
  INFO(trained.err);
  REQUIRE(trained.code == 0);
}

const Words kPredict{"predict", "--checkpoint", "run"};

// The lines of a file of predictions, without the names.
std::vector<Words> rows_of(const std::string& file) {
  std::vector<Words> rows;
  for (const std::string& line : lines_of(read_text(file))) {
    Words fields;
    std::istringstream in(line);
    for (std::string field; std::getline(in, field, ',');) fields.push_back(field);
    rows.push_back(fields);
  }
  REQUIRE_FALSE(rows.empty());
  rows.erase(rows.begin());
  return rows;
}

}  // namespace

TEST_CASE("the first class of each test image agrees with --evaluate, on one replica and on several") {
  const TemporaryFolder temp;
  train(temp);
  for (const std::string& checkpoint : {std::string("run/checkpoints/last"), std::string("run/checkpoints/best")}) {
    const Outcome evaluated = run_dp_train(Words{"--resume", checkpoint, "--evaluate"} + kOne, temp.path());
    INFO(evaluated.out << evaluated.err);
    const std::size_t at = evaluated.out.find("Test: Acc@1 ");
    REQUIRE(at != std::string::npos);
    const double accuracy = std::stod(evaluated.out.substr(at + 12));
    for (const Words& devices : {kOne, kOne + Words{"-b", "1"}, Words{"--cpu", "3", "-b", "4"}, Words{"-j", "2"}}) {
      const Words predict = Words{"predict", "--checkpoint", checkpoint} + devices;
      const Outcome outcome = run_dp_train(predict + Words{"--csv", "out.csv", "set/val"}, temp.path());
      INFO(outcome.out << outcome.err);
      REQUIRE(outcome.code == 0);
      CHECK_THAT(outcome.out, Catch::Contains("7 of 7 images predicted in ") && Catch::Contains(" img/s\nout.csv\n") &&
                                  Catch::Contains("(softmax)"));
      int right = 0;
      const auto rows = rows_of(temp / "out.csv");
      REQUIRE(rows.size() == 7);
      for (const Words& row : rows) {
        REQUIRE(row.size() == 5);
        right += row[0].starts_with("set/val/" + row[1] + "/");
        CHECK(std::stod(row[2]) + std::stod(row[4]) == Approx(1));
        CHECK(std::stod(row[2]) >= std::stod(row[4]));
      }
      CHECK(100.0 * right / 7 == Approx(accuracy).margin(0.001));
    }
  }
}

TEST_CASE("the table has a row for each image, and is all that --quiet prints") {
  const TemporaryFolder temp;
  train(temp);
  const Words images{"set/val/dog", "set/val/cat/jpeg_420.jpg"};
  const Outcome loud = run_dp_train(kPredict + kOne + images, temp.path());
  CHECK(loud.code == 0);
  CHECK_THAT(loud.out, Catch::StartsWith("mlp on cpu") && Catch::Contains("4 of 4 images predicted"));
  const Outcome quiet = run_dp_train(kPredict + kOne + images + Words{"--quiet", "--top", "1"}, temp.path());
  CHECK(quiet.code == 0);
  const auto lines = lines_of(quiet.out);
  REQUIRE(lines.size() == 4);
  CHECK_THAT(lines[0], Catch::StartsWith("set/val/dog/jpeg_444.jpg ") && Catch::Contains(" % "));
  CHECK_THAT(lines[3], Catch::StartsWith("set/val/cat/jpeg_420.jpg ") && Catch::Contains(" % "));
  for (const std::string& line : lines) CHECK((line.ends_with(" cat") || line.ends_with(" dog")));
  CHECK(quiet.err.empty());
}

TEST_CASE("paths from stdin are predicted, folders among them, and records go to stdout alone") {
  const TemporaryFolder temp;
  train(temp);
  write_text(temp / "paths", "set/val/cat/jpeg_420.jpg\n\nset/val/dog\n");
  const Words from_file{"/bin/sh", "-c", R"(exec "$0" "$@" < paths)"};
  const Outcome outcome = Program(kPredict + kOne + Words{"--jsonl", "-", "-"}, temp.path(), {}, from_file).wait();
  INFO(outcome.err);
  CHECK(outcome.code == 0);
  const auto lines = lines_of(outcome.out);
  REQUIRE(lines.size() == 4);
  for (const std::string& line : lines) {
    const auto record = nlohmann::json::parse(line);
    REQUIRE(record["top"].size() == 2);
    const auto& first = record["top"][0];
    CHECK(first["class"] == (first["index"] == 0 ? "cat" : "dog"));
    CHECK(first["probability"].get<double>() >= 0.5);
  }
  CHECK(nlohmann::json::parse(lines[0])["path"] == "set/val/cat/jpeg_420.jpg");
  write_text(temp / "paths", "\n");
  const Outcome none = Program(kPredict + kOne + Words{"-"}, temp.path(), {}, from_file).wait();
  CHECK(none.code == 3);
  CHECK_THAT(none.err, Catch::Contains("no images to predict: stdin has no paths"));
}

TEST_CASE("images that cannot be read are listed at the end, and only nothing else fails") {
  const TemporaryFolder temp;
  train(temp);
  write_text(temp / "bad.jpg", "no image");
  const Words bad{"bad.jpg", "none.jpg"};
  const Outcome some =
      run_dp_train(kPredict + kOne + Words{"--csv", "out.csv"} + bad + Words{"set/val/dog"}, temp.path());
  CHECK(some.code == 0);
  CHECK_THAT(some.out, Catch::Contains("3 of 5 images predicted"));
  CHECK_THAT(some.err, Catch::Contains("2 images cannot be read and were skipped:\n  bad.jpg: neither JPEG nor PNG") &&
                           Catch::Contains("  none.jpg: "));
  CHECK(rows_of(temp / "out.csv").size() == 3);
  const Outcome none = run_dp_train(kPredict + kOne + Words{"--quiet"} + bad, temp.path());
  CHECK(none.code == 3);
  CHECK(none.out.empty());
  CHECK_THAT(none.err, Catch::Contains("2 images cannot be read"));
}

TEST_CASE("what predict cannot do is refused", "[processes]") {
  const TemporaryFolder temp;
  train(temp);
  fs::create_directory(temp / "empty");
  const Words image{"set/val/cat/jpeg_420.jpg"};
  const auto refused = [&](const Words& arguments, int code, const std::string& text) {
    const Outcome outcome = run_dp_train(arguments, temp.path());
    INFO(outcome.err);
    CHECK(outcome.code == code);
    CHECK_THAT(outcome.err, Catch::Contains(text));
  };
  refused({"predict", "--checkpoint", "run"}, 2, "predict requires image files, folders");
  refused(Words{"predict"} + image, 2, "predict requires --checkpoint, a run folder");
  refused(kPredict + Words{"empty"}, 3, "empty: no images (.jpg");
  refused(kPredict + Words{"--csv", "none/out.csv"} + image, 7, "none/out.csv cannot be written");
  refused(kPredict + Words{"--csv", "-", "--jsonl", "-"} + image, 2, "--csv and --jsonl name the same file");
  refused(kPredict + Words{"--weights", "average"} + image, 2, "has no moving average");
  refused(kPredict + Words{"--lr", "1"} + image, 2, "--lr is not an option of predict");
  refused(Words{"--lr", "1"} + kPredict + image, 2, "--lr has no effect on predict");
  refused(Words{"predict", "--checkpoint", "set"} + image, 3, "set: is neither a run folder");
}

TEST_CASE("a signal ends predict while it waits for paths", "[processes]") {
  const TemporaryFolder temp;
  train(temp);
  REQUIRE(::mkfifo((temp / "fifo").c_str(), 0600) == 0);
  Program program(kPredict + kOne + Words{"-"}, temp.path(), {}, {"/bin/sh", "-c", R"(exec "$0" "$@" <> fifo)"});
  program.wait_until_signals_are_handled();
  ::kill(program.id(), SIGINT);
  const Outcome outcome = program.wait();
  CHECK(outcome.code == 130);
  CHECK_THAT(outcome.err, Catch::Contains("stopping"));
}

TEST_CASE("a network with targets gives sigmoids of BCE, and plain numbers of other losses") {
  for (const auto& [loss, text, columns] :
       {std::tuple("bce_with_logits", "(sigmoid)", "path,class1,probability1,class2,probability2"),
        std::tuple("mse", "the network's outputs as they are", "path,output0,output1")}) {
    const TemporaryFolder temp;
    INFO(loss);
    copy("jpeg_420", temp / "set/1.jpg");
    copy("png_rgb", temp / "set/2.jpg");
    for (const char* part : {"train", "val"})
      write_text(temp / ("set/" + std::string(part) + ".csv"), "1.jpg,0,1\n2.jpg,1,1\n");
    const Outcome trained =
        run_dp_train(Words{"--dataset", "imagetargets", "--data-path", "set", "--image-size", "16", "--model", "mlp",
                           "-b", "2", "--epochs", "1", "--output-loss", loss, "--output-dir", "run"} +
                         kOne,
                     temp.path());
    INFO(trained.err);
    REQUIRE(trained.code == 0);
    const Outcome outcome = run_dp_train(kPredict + kOne + Words{"--csv", "out.csv", "set"}, temp.path());
    INFO(outcome.err);
    CHECK(outcome.code == 0);
    CHECK_THAT(outcome.out, Catch::Contains(text));
    const auto lines = lines_of(read_text(temp / "out.csv"));
    REQUIRE(lines.size() == 3);
    CHECK(lines[0] == columns);
  }
}
