#include "data/datasets/known_files.h"

#include <algorithm>
#include <array>
#include <functional>
#include <string_view>

#include "data/formats/byte_reader.h"
#include "data/formats/idx.h"

namespace dp {

std::vector<std::string> fashion_mnist_names() {
  return {"T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"};
}

std::vector<std::string> cifar10_names() {
  return {"airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"};
}

std::vector<std::string> cifar100_names() {
  return {"apple",      "aquarium_fish", "baby",         "bear",       "beaver",      "bed",         "bee",
          "beetle",     "bicycle",       "bottle",       "bowl",       "boy",         "bridge",      "bus",
          "butterfly",  "camel",         "can",          "castle",     "caterpillar", "cattle",      "chair",
          "chimpanzee", "clock",         "cloud",        "cockroach",  "couch",       "crab",        "crocodile",
          "cup",        "dinosaur",      "dolphin",      "elephant",   "flatfish",    "forest",      "fox",
          "girl",       "hamster",       "house",        "kangaroo",   "keyboard",    "lamp",        "lawn_mower",
          "leopard",    "lion",          "lizard",       "lobster",    "man",         "maple_tree",  "motorcycle",
          "mountain",   "mouse",         "mushroom",     "oak_tree",   "orange",      "orchid",      "otter",
          "palm_tree",  "pear",          "pickup_truck", "pine_tree",  "plain",       "plate",       "poppy",
          "porcupine",  "possum",        "rabbit",       "raccoon",    "ray",         "road",        "rocket",
          "rose",       "sea",           "seal",         "shark",      "shrew",       "skunk",       "skyscraper",
          "snail",      "snake",         "spider",       "squirrel",   "streetcar",   "sunflower",   "sweet_pepper",
          "table",      "tank",          "telephone",    "television", "tiger",       "tractor",     "train",
          "trout",      "tulip",         "turtle",       "wardrobe",   "whale",       "willow_tree", "wolf",
          "woman",      "worm"};
}

namespace {

namespace fs = std::filesystem;

std::string lower(std::string text) {
  for (char& letter : text)
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  return text;
}

bool has(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

std::vector<fs::path> entries_of(const fs::path& folder) {
  constexpr std::size_t kMostEntries = 10'000;
  std::vector<fs::path> paths;
  std::error_code error;
  fs::directory_iterator entries(folder, error);
  for (; !error && entries != fs::directory_iterator() && paths.size() < kMostEntries; entries.increment(error))
    paths.push_back(entries->path());
  std::sort(paths.begin(), paths.end());
  return paths;
}

// `what`: what an entry is; empty if it is nothing known.
std::string found_instead(const std::vector<fs::path>& places,
                          const std::function<std::string(const fs::path&)>& what) {
  constexpr std::size_t kMostFound = 3;
  std::string text;
  std::size_t count = 0;
  for (const fs::path& place : places)
    for (const fs::path& path : entries_of(place)) {
      const std::string is = what(path);
      if (is.empty() || ++count > kMostFound) continue;
      text += (count == 1 ? "; found " : ", ") + path.string() + " (" + is + ")";
    }
  return count > kMostFound ? text + " and " + std::to_string(count - kMostFound) + " more" : text;
}

bool is_image_folder(const fs::path& path) {
  const std::string name = lower(path.filename().string());
  std::error_code ignored;
  if ((name != "train" && name != "training") || !fs::is_directory(path, ignored)) return false;
  const std::vector<fs::path> entries = entries_of(path);
  return std::any_of(entries.begin(), entries.end(), [](const fs::path& entry) {
    std::error_code error;
    return fs::is_directory(entry, error);
  });
}

constexpr const char* kImageFolder = "a folder of classes, as --dataset imagefolder reads";

// --- CIFAR

constexpr const char* kArchive = "an archive that is not unpacked";

std::string cifar_kind(const fs::path& path, const std::string& dataset) {
  const std::string name = lower(path.filename().string());
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    if (name == "cifar-10-batches-py" || name == "cifar-100-python")
      return "the Python edition; the binary one is read";
    if (name == "cifar-10-batches-mat" || name == "cifar-100-matlab")
      return "the MATLAB edition; the binary one is read";
    if (name == "cifar-10-batches-bin" && dataset != "cifar10") return "CIFAR-10: --dataset cifar10";
    if (name == "cifar-100-binary" && dataset != "cifar100") return "CIFAR-100: --dataset cifar100";
    return is_image_folder(path) ? kImageFolder : "";
  }
  const bool archive = name.ends_with(".tar.gz") || name.ends_with(".tgz") || name.ends_with(".tar") ||
                       name.ends_with(".gz") || name.ends_with(".zip");
  if (archive && (has(name, "cifar-10") || has(name, "cifar10"))) {
    if (has(name, "python") || has(name, "-py")) return "an archive of the Python edition; the binary one is read";
    if (has(name, "matlab") || has(name, "-mat")) return "an archive of the MATLAB edition; the binary one is read";
    const bool hundred = has(name, "cifar-100") || has(name, "cifar100");
    if (hundred != (dataset == "cifar100"))
      return hundred ? "the archive of CIFAR-100: --dataset cifar100" : "the archive of CIFAR-10: --dataset cifar10";
    return has(name, "tar") || name.ends_with(".tgz") ? kArchive : "an archive";
  }
  if (name == "batches.meta" || name == "meta" || name == "data_batch_1" || name == "test_batch")
    return "a file of the Python edition; the binary one is read";
  if (name == "batches.meta.mat" || name == "data_batch_1.mat") return "a file of the MATLAB edition";
  if (name == "data_batch_1.bin" && dataset != "cifar10") return "a file of CIFAR-10: --dataset cifar10";
  if ((name == "fine_label_names.txt" || name == "train.bin" || name == "test.bin") && dataset != "cifar100")
    return "a file of CIFAR-100: --dataset cifar100";
  return "";
}

// --- MNIST

// The magic number of an IDX file, packed or not; 0 for another file.
std::uint32_t idx_magic(const fs::path& path) try {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return 0;
  FileReader file(path.string());
  std::array<std::uint8_t, 4> begin{};
  if (file.read(begin) != begin.size()) return 0;
  if (begin[0] == 0x1f && begin[1] == 0x8b) {
    GzipReader unpacked(file);
    if (unpacked.read(begin) != begin.size()) return 0;
  }
  const std::uint32_t magic =
      std::uint32_t{begin[0]} << 24 | std::uint32_t{begin[1]} << 16 | std::uint32_t{begin[2]} << 8 | begin[3];
  return idx_description(magic).empty() ? 0 : magic;
} catch (const Error&) {
  return 0;
}

// The name that the program looks for; empty if the file's own name does not say which of the four it is.
std::string official_name(const std::string& name, bool images) {
  const char* const kind = images ? "-images-idx3-ubyte" : "-labels-idx1-ubyte";
  if (has(name, "t10k") || has(name, "test")) return std::string("t10k") + kind;
  return has(name, "train") ? std::string("train") + kind : "";
}

// Whether the program looks for this name.
bool accepted_name(std::string name) {
  if (name.ends_with(".gz")) name.resize(name.size() - 3);
  if (const auto joint = name.find(".idx"); joint != std::string::npos) name[joint] = '-';
  return name == official_name(name, has(name, "images"));
}

std::string mnist_kind(const fs::path& path) {
  const std::string name = lower(path.filename().string());
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) return is_image_folder(path) ? kImageFolder : "";
  for (const auto& [part, set] : {std::pair("qmnist", "QMNIST"), {"emnist", "EMNIST"}, {"k49", "Kuzushiji-49"}})
    if (has(name, part)) return std::string(set) + ", which is not read";
  if (has(name, "idx2")) return "labels of QMNIST, which is not read";
  if (name == "mnist.npz" || name == "mnist.pkl.gz" || name == "training.pt" || name == "mnist_train.csv")
    return "another edition, which is not read";
  const std::uint32_t magic = accepted_name(path.filename().string()) ? 0 : idx_magic(path);
  if (magic != 0) {
    const bool of_images = magic == kImageMagic;
    if (!of_images && magic != kLabelMagic) return "IDX of " + idx_description(magic) + ", which is not read";
    const std::string official = official_name(name, of_images);
    const bool packed = name.ends_with(".gz");
    return std::string("IDX ") + (of_images ? "images" : "labels") + " under another name" +
           (official.empty() ? "" : "; rename it to " + official + (packed ? ".gz" : ""));
  }
  return "";
}

}  // namespace

FoundInstead cifar_found_instead(const std::vector<fs::path>& places, const std::string& dataset) {
  FoundInstead found;
  found.text = found_instead(places, [&](const fs::path& path) {
    const std::string kind = cifar_kind(path, dataset);
    if (kind == kArchive) found.archive = path.string();
    return kind;
  });
  return found;
}

std::string mnist_found_instead(const std::vector<fs::path>& places) { return found_instead(places, mnist_kind); }

}  // namespace dp
