// Class folders that were renamed, removed or added under trained weights.
#include <filesystem>

#include "apps/idx_files.h"
#include "apps/run_program.h"
#include "data/image_files.h"
#include "support/catch.h"

namespace {

namespace fs = std::filesystem;
using namespace dp::test;

// Three classes of two images each, in train/ and val/, and a run of two steps on them.
class Zoo {
 public:
  Zoo() {
    const std::vector<std::string> images{"jpeg_420", "jpeg_422", "jpeg_tiny", "png_palette", "png_rgba", "jpeg_cmyk"};
    for (const char* part : {"train", "val"})
      for (std::size_t i = 0; i < images.size(); ++i) {
        const std::string folder = std::string("set/") + part + "/" + (i < 2 ? "bee" : i < 4 ? "cow" : "dog");
        fs::create_directories(temp_ / folder);
        temp_.write(folder + "/" + std::to_string(i) + ".jpg", corpus_image(images[i]));
      }
    const Outcome trained = run({"--model", "mlp", "--dataset", "imagefolder", "--data-path", "set", "--image-size",
                                 "16", "-b", "3", "--epochs", "1", "--output-dir", "run"});
    INFO(trained.err);
    REQUIRE(trained.code == 0);
  }
  void rename(const std::string& from, const std::string& to) const {
    for (const char* part : {"set/train/", "set/val/"}) fs::rename(temp_ / (part + from), temp_ / (part + to));
  }
  void remove(const std::string& name) const {
    for (const char* part : {"set/train/", "set/val/"}) fs::remove_all(temp_ / (part + name));
  }
  Outcome run(const Words& words) const { return run_dp_train(words + Words{"--cpu", "2", "--quiet"}, temp_.path()); }

 private:
  const TemporaryFolder temp_;
};

TEST_CASE("a renamed class folder is refused with both lists of names, in both engines") {
  const Zoo zoo;
  zoo.rename("bee", "wasp");
  const std::string both = "has the classes 'bee', 'cow', 'dog', but the data set has 'cow', 'dog', 'wasp'; ";
  for (const Words& words : {Words{"--resume", "run", "-e"},
                             {"--resume", "run", "--epochs", "2"},
                             {"--resume", "run", "-e", "--engine", "ddp"}}) {
    const Outcome refused = zoo.run(words);
    CHECK(refused.code == 3);
    CHECK_THAT(refused.err, Catch::Contains("checkpoint 'run/checkpoints/last' " + both));
  }
  const Outcome weights = zoo.run({"--model", "mlp", "--dataset", "imagefolder", "--data-path", "set", "--image-size",
                                   "16", "-e", "--init", "run/checkpoints/last/model.safetensors"});
  CHECK(weights.code == 3);
  CHECK_THAT(weights.err, Catch::Contains(both));
  zoo.rename("wasp", "bee");
  CHECK(zoo.run({"--resume", "run", "-e"}).code == 0);
}

TEST_CASE("with --classes-from data a run trains and evaluates on some of the classes, and a resumed run keeps it") {
  const Zoo zoo;
  zoo.remove("bee");
  const Outcome refused = zoo.run({"--resume", "run", "-e"});
  CHECK(refused.code == 3);
  CHECK_THAT(refused.err, Catch::Contains("or match them by name with --classes-from data"));
  CHECK(zoo.run({"--resume", "run", "-e", "--classes-from", "data", "--engine", "ddp"}).code == 0);
  const Outcome trained = zoo.run({"--resume", "run", "--epochs", "2", "--classes-from", "data"});
  CHECK_THAT(trained.err, Catch::Contains("the training images are not those of the checkpoint (4, not 6)"));
  CHECK(trained.code == 0);
  CHECK(zoo.run({"--resume", "run", "--epochs", "3"}).code == 0);
  zoo.rename("dog", "wolf");
  const Outcome unknown = zoo.run({"--resume", "run", "-e"});
  CHECK(unknown.code == 3);
  CHECK_THAT(unknown.err, Catch::Contains("the data set has the class 'wolf', which is not among the 3 classes"));
}

TEST_CASE("the option --classes-from requires weights that record their classes") {
  const TemporaryFolder temp;
  check_bad_input({{"--classes-from", "data"}, 2, {"--classes-from data requires weights; give --init FILE or"}},
                  temp.path());
  check_bad_input({{"--classes-from", "position"}, 2, {"--classes-from position requires weights"}}, temp.path());
}

}  // namespace
