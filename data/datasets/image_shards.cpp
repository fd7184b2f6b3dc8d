// The data set "imageshards": images and their classes in tar files, as WebDataset writes them.
#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "data/datasets/image_folder.h"
#include "data/formats/byte_reader.h"
#include "data/formats/tar_index.h"
#include "dp/dataset.h"
#include "dp/error.h"

namespace dp {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kLongestLabel = 1 << 20;  // bytes of a file .cls or .json

// Whether the text has this word, with no letter beside it.
bool has_word(const std::string& text, const std::string& word) {
  const auto is_letter = [&](std::size_t at) {
    return at < text.size() && ((text[at] >= 'a' && text[at] <= 'z') || (text[at] >= 'A' && text[at] <= 'Z'));
  };
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1))
    if (!is_letter(at - 1) && !is_letter(at + word.size())) return true;
  return false;
}

// Returns the tar files of a part, sorted: those in the folder of its name, or else those in `folder` with its name in
// theirs.
std::vector<std::string> shards_of(const fs::path& folder, std::initializer_list<const char*> parts) {
  std::error_code error;
  for (const std::string part : parts) {
    std::vector<std::string> found;
    const auto add_from = [&](const fs::path& place, const std::string& within) {
      for (const auto& entry : fs::directory_iterator(place, error)) {
        const std::string name = entry.path().filename().string();
        if (!name.ends_with(".tar") || name.starts_with('.')) continue;
        if (!within.empty() && !has_word(name, within)) continue;
        const bool trains = has_word(name, "train"), tests = has_word(name, "val") || has_word(name, "test");
        if (!within.empty() && trains && tests)
          throw Error(ErrorCode::data, entry.path().string() +
                                           ": its name has the words of both parts; put the archives into train/ and "
                                           "val/");
        found.push_back(entry.path().string());
      }
    };
    add_from(folder / part, "");
    if (found.empty()) add_from(folder, part);
    std::ranges::sort(found);
    if (!found.empty()) return found;
  }
  return {};
}

// The files of one sample have the same path up to the first dot of their name.
struct Member {
  std::string key, field;
};
Member member_of(const std::string& name) {
  const std::size_t slash = name.rfind('/'), begin = slash == std::string::npos ? 0 : slash + 1;
  const std::size_t dot = name.find('.', begin);
  if (dot == std::string::npos || dot == begin) return {name, ""};
  std::string field = name.substr(dot + 1);
  for (char& letter : field)
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  return {name.substr(0, dot), field};
}

bool is_image(const std::string& field) {
  return field == "jpg" || field == "jpeg" || field == "png" || field == "webp";
}

// Lists the samples of some shards.
class ShardReader {
 public:
  // `classes`: those of the training part, or null.
  explicit ShardReader(const std::vector<std::string>* classes) : training_(classes) {
    if (classes == nullptr) return;
    list_.classes = *classes;
    for (const std::string& name : *classes) numbers_.emplace(name, static_cast<std::int32_t>(numbers_.size()));
  }

  void read(const std::string& path) {
    shard_ = path;
    list_.shards.push_back(path);
    std::string key;
    for (const TarEntry& entry : list_tar(path)) {
      const Member member = member_of(entry.name);
      if (member.key != key) end_sample(key);
      key = member.key;
      if (is_image(member.field) && !image_)
        image_ = entry;
      else if (member.field == "cls" || member.field == "json")
        read_label(entry, member.field == "json");
    }
    end_sample(key);
  }

  ImageList take() {
    if (list_.labels.empty()) throw Error(ErrorCode::data, shard_ + ": no images in it");
    if (training_ == nullptr) sort_classes(list_);
    return std::move(list_);
  }

 private:
  Error bad(const std::string& name, const std::string& what) const {
    return Error(ErrorCode::data, shard_ + ": " + name + ": " + what);
  }

  void end_sample(const std::string& key) {
    if (image_) {
      if (!label_)
        throw bad(image_->name, "an image without a class; add " + key + ".cls with its name or number, or " + key +
                                    R"(.json such as {"label": "cat"})");
      const auto [known, is_new] = numbers_.emplace(*label_, static_cast<std::int32_t>(numbers_.size()));
      if (is_new && training_ != nullptr) throw bad(image_->name, "class '" + *label_ + "' has no training images");
      if (is_new) list_.classes.push_back(*label_);
      list_.labels.push_back(known->second);
      list_.ends.push_back(list_.names.append(image_->name).size());
      list_.places.push_back({static_cast<std::uint32_t>(list_.shards.size() - 1), image_->begin, image_->bytes});
    }
    image_.reset(), label_.reset();
  }

  void read_label(const TarEntry& entry, bool json) {
    if (entry.bytes > kLongestLabel) throw bad(entry.name, "more than 1 MiB");
    std::string text(entry.bytes, '\0');
    PieceReader(shard_).read(entry.begin, {reinterpret_cast<std::uint8_t*>(text.data()), text.size()});
    if (json) {
      const auto object = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
      if (!object.is_object() || !object.contains("label")) return;
      const auto& label = object.at("label");
      if (!label.is_string() && !label.is_number_integer())
        throw bad(entry.name, "its label is neither text nor a whole number");
      text = label.is_string() ? label.get<std::string>() : label.dump();
    } else {
      text.erase(0, text.find_first_not_of(" \t\r\n"));
      text.erase(text.find_last_not_of(" \t\r\n") + 1);
    }
    if (text.empty() || text.size() > 4096 || text.find('\0') != std::string::npos)
      throw bad(entry.name, "a class name must have 1 to 4096 bytes, without a zero byte");
    label_ = text;
  }

  const std::vector<std::string>* training_;
  std::string shard_;
  ImageList list_;
  std::map<std::string, std::int32_t> numbers_;
  std::optional<TarEntry> image_;  // of the current sample
  std::optional<std::string> label_;
};

std::vector<std::string> require_shards(const std::string& folder, std::initializer_list<const char*> parts) {
  std::vector<std::string> shards = shards_of(folder, parts);
  if (shards.empty())
    throw Error(ErrorCode::data, "imageshards: no tar files of the part " + std::string(*parts.begin()) + " in " +
                                     folder + "; put them into " + folder + "/" + *parts.begin() +
                                     "/, or name them such as " + *parts.begin() +
                                     "-000.tar, and set --data-path to their folder");
  return shards;
}

ImageList read_part(const std::vector<std::string>& shards, const std::vector<std::string>* classes) {
  ShardReader reader(classes);
  for (const std::string& shard : shards) reader.read(shard);
  return reader.take();
}

}  // namespace

namespace datasets {

std::shared_ptr<const Dataset> image_shards_train(const std::string& folder, std::int64_t side,
                                                  const Resizing& resizing) {
  require_size("imageshards", side, resizing);
  return image_dataset(folder, read_part(require_shards(folder, {"train"}), nullptr), side, resizing);
}
DatasetPair image_shards(const std::string& folder, std::int64_t side, const Resizing& resizing) {
  require_size("imageshards", side, resizing);
  ImageList train = read_part(require_shards(folder, {"train"}), nullptr);
  ImageList test = read_part(require_shards(folder, {"val", "test"}), &train.classes);
  return {image_dataset(folder, std::move(train), side, resizing),
          image_dataset(folder, std::move(test), side, resizing)};
}

}  // namespace datasets
}  // namespace dp
