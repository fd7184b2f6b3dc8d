// The data sets "imagelist" and "imagetargets": CSV files (RFC 4180) or JSON lines with a path per line, and a class or
// numbers.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/datasets/image_folder.h"
#include "data/formats/byte_reader.h"
#include "dp/dataset.h"
#include "dp/error.h"

namespace dp {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxListBytes = std::uint64_t{1} << 30;
constexpr std::size_t kLongestField = 4096;
constexpr const char* kWeight = "sample_weight";

std::string in_lower_case(std::string text) {
  for (char& letter : text)
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  return text;
}

// What a line has behind the path, for errors.
struct LineForm {
  const char* example;
  const char* line;
  const char* key;  // of JSON
  const char* object;
};
constexpr LineForm kWithClass{"cats/1.jpg,cat", "a path, a comma and a class", "label",
                              R"({"path": "cats/1.jpg", "label": "cat"})"};
constexpr LineForm kWithTargets{"1.jpg,0.5,-2", "a path and its targets, separated by commas", "targets",
                                R"({"path": "1.jpg", "targets": [0.5, -2]})"};

// The text of a list, and the records that are read from it one after another.
class ListReader {
 public:
  ListReader(const std::string& path, const LineForm& form, const char* example) : form_(form), path_(path) {
    FileReader file(path, std::string("make it a readable file of lines such as ") + example);
    if (*file.size() > kMaxListBytes)
      throw Error(ErrorCode::data, path + ": has more than 1 GiB; split it into several data sets");
    text_.resize(*file.size());
    text_.resize(file.read({reinterpret_cast<std::uint8_t*>(text_.data()), text_.size()}));
    constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
    if (text_.starts_with(kByteOrderMark)) at_ = kByteOrderMark.size();
  }
  virtual ~ListReader() = default;

  // Reads the next record, without empty lines. Returns false at the end.
  virtual bool next() = 0;
  virtual bool may_begin_with_names() const = 0;

  // An error in the current record.
  Error bad(const std::string& what) const {
    return Error(ErrorCode::data, path_ + ":" + std::to_string(line_) + ": " + what);
  }
  // The current record is a line of names. Later ones may have a field with the name sample_weight.
  void take_names() {
    const auto at = std::ranges::find(fields, std::string(kWeight), in_lower_case);
    if (at != fields.end()) weight_field_ = static_cast<std::size_t>(at - fields.begin());
  }
  std::vector<std::string> fields;    // of the current record: the path, and what follows, without the weight
  std::optional<std::string> weight;  // of the current record

 protected:
  void take_weight() {
    weight.reset();
    if (weight_field_ == 0 || weight_field_ >= fields.size()) return;
    weight = fields[weight_field_];
    fields.erase(fields.begin() + static_cast<std::ptrdiff_t>(weight_field_));
  }

  const LineForm& form_;
  std::string path_, text_;
  std::size_t at_ = 0, line_ = 0;

 private:
  std::size_t weight_field_ = 0;  // 0: none
};

// Objects, one a line, with "path" ("file_name" as in the metadata of Hugging Face's ImageFolder, or "image"), and
// "label" or "targets". Other keys are ignored.
class JsonReader final : public ListReader {
 public:
  JsonReader(const std::string& path, const LineForm& form) : ListReader(path, form, form.object) {}

  bool may_begin_with_names() const override { return false; }
  bool next() override {
    std::string_view line;
    do {
      if (at_ >= text_.size()) return false;
      const std::size_t end = std::min(text_.find('\n', at_), text_.size());
      line = std::string_view(text_).substr(at_, end - at_);
      at_ = end + 1, ++line_;
    } while (line.find_first_not_of(" \t\r") == std::string_view::npos);
    const auto record = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!record.is_object()) throw bad(std::string("no JSON object; each line is such as ") + form_.object);
    fields.clear();
    for (const char* const key : {"path", "file_name", "image"})
      if (fields.empty() && record.contains(key)) add(record.at(key));
    if (fields.empty()) throw bad(std::string("no \"path\"; each line is such as ") + form_.object);
    if (!record.contains(form_.key))
      throw bad(std::string("no \"") + form_.key + "\"; each line is such as " + form_.object);
    const auto& value = record.at(form_.key);
    if (value.is_array() && &form_ == &kWithTargets)
      for (const auto& item : value) add(item);
    else
      add(value);
    weight.reset();
    if (record.contains(kWeight)) add(record.at(kWeight)), weight = fields.back(), fields.pop_back();
    if (fields.size() < 2 || fields[0].empty() || fields[1].empty())
      throw bad(std::string("an empty value; each line is such as ") + form_.object);
    return true;
  }

 private:
  void add(const nlohmann::json& value) {
    if (!value.is_string() && !value.is_number())
      throw bad(std::string("a value that is neither text nor a number; each line is such as ") + form_.object);
    fields.push_back(value.is_string() ? value.get<std::string>() : value.dump());
    if (fields.back().size() > kLongestField || fields.back().find('\0') != std::string::npos)
      throw bad("a value of more than 4096 bytes, or with a zero byte");
  }
};

class CsvReader final : public ListReader {
 public:
  CsvReader(const std::string& path, const LineForm& form) : ListReader(path, form, form.example) {}

  bool may_begin_with_names() const override { return true; }
  bool next() override {
    while (at_ < text_.size() && ends_line()) skip_line_end();
    if (at_ == text_.size()) return false;
    line_ = next_line_;
    std::size_t count = 0;
    for (bool more = true; more; ++count) {
      if (fields.size() == count) fields.emplace_back();
      read_field(fields[count]);
      more = at_ < text_.size() && text_[at_] == ',';
      if (more) ++at_;
    }
    fields.resize(count);
    take_weight();
    if (fields.size() < 2) throw bad(std::string("only one field; each line is ") + form_.line);
    if (fields[0].empty() || fields[1].empty()) throw bad(std::string("an empty field; each line is ") + form_.line);
    if (at_ < text_.size()) skip_line_end();
    return true;
  }

 private:
  bool ends_line() const { return text_[at_] == '\n' || text_[at_] == '\r'; }
  void skip_line_end() {
    if (text_[at_] == '\r' && at_ + 1 < text_.size() && text_[at_ + 1] == '\n') ++at_;
    ++at_, ++next_line_;
  }

  void read_field(std::string& field) {
    field.clear();
    const auto is_space = [](char letter) { return letter == ' ' || letter == '\t'; };
    while (at_ < text_.size() && is_space(text_[at_])) ++at_;
    const bool quoted = at_ < text_.size() && text_[at_] == '"';
    if (quoted) read_quoted(field);
    for (; at_ < text_.size() && text_[at_] != ',' && !ends_line(); ++at_) {
      if (quoted && !is_space(text_[at_])) throw bad("a character behind a quoted field");
      if (!quoted) add(field, text_[at_]);
    }
    while (!quoted && !field.empty() && is_space(field.back())) field.pop_back();
  }

  void read_quoted(std::string& field) {
    for (++at_;; ++at_) {
      if (at_ == text_.size()) throw bad("a quoted field without its closing quote");
      if (text_[at_] == '"') {
        ++at_;
        if (at_ == text_.size() || text_[at_] != '"') return;  // two quotes stand for one
      }
      if (text_[at_] == '\n') ++next_line_;
      add(field, text_[at_]);
    }
  }

  void add(std::string& field, char letter) {
    if (field.size() == kLongestField || letter == '\0')
      throw bad("a field of more than 4096 bytes, or with a zero byte");
    field += letter;
  }

  std::size_t next_line_ = 1;
};

std::unique_ptr<ListReader> open_list(const std::string& path, const LineForm& form) {
  if (path.ends_with(".jsonl")) return std::make_unique<JsonReader>(path, form);
  return std::make_unique<CsvReader>(path, form);
}

bool is_header(const ListReader& record) {
  if (!record.may_begin_with_names()) return false;
  const auto is_one_of = [](const std::string& field, std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), in_lower_case(field)) != names.end();
  };
  const std::size_t second = record.fields.size() > 2 && is_one_of(record.fields[1], {kWeight}) ? 2 : 1;
  return is_one_of(record.fields[0], {"path", "file", "filename", "file_name", "image", "image_path"}) &&
         is_one_of(record.fields[second], {"class", "class_name", "label", "category", "target"});
}

// Whole numbers of up to nine digits sort by value, so that class 10 follows class 9.
bool is_whole_number(const std::string& name) {
  return name.size() <= 9 && (name == "0" || name[0] != '0') &&
         std::all_of(name.begin(), name.end(), [](char letter) { return letter >= '0' && letter <= '9'; });
}

}  // namespace

void sort_classes(ImageList& list) {
  const bool numbers = std::all_of(list.classes.begin(), list.classes.end(), is_whole_number);
  std::vector<std::int32_t> order(list.classes.size()), place(list.classes.size());
  std::iota(order.begin(), order.end(), 0);
  const auto name = [&](std::int32_t i) -> const std::string& { return list.classes[static_cast<std::size_t>(i)]; };
  std::sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return numbers ? std::stoi(name(a)) < std::stoi(name(b)) : name(a) < name(b);
  });
  std::vector<std::string> sorted;
  for (std::size_t i = 0; i < order.size(); ++i) {
    place[static_cast<std::size_t>(order[i])] = static_cast<std::int32_t>(i);
    sorted.push_back(name(order[i]));
  }
  list.classes = std::move(sorted);
  for (std::int32_t& label : list.labels) label = place[static_cast<std::size_t>(label)];
}

namespace {

// A finite number.
std::optional<float> number_in(const std::string& text) {
  float value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

// Adds the image of the current record. All images have weights, or none.
void add_image(const ListReader& record, std::int32_t label, ImageList& list) {
  if (!list.labels.empty() && record.weight.has_value() == list.weights.empty())
    throw record.bad(std::string(record.weight ? "a " : "no ") + kWeight + ", unlike other images");
  if (record.weight) {
    const std::optional<float> weight = number_in(*record.weight);
    if (!weight || *weight < 0) throw record.bad("'" + *record.weight + "' is no weight; give a number from 0 on");
    list.weights.push_back(*weight);
  }
  list.labels.push_back(label);
  list.ends.push_back(list.names.append(record.fields[0]).size());
}

// `classes`: those of the training part, or null.
ImageList read_list(const std::string& path, const std::vector<std::string>* classes) {
  const auto reader = open_list(path, kWithClass);
  ListReader& record = *reader;
  ImageList list;
  list.in_class_folders = false;
  std::map<std::string, std::int32_t> numbers;
  if (classes) {
    list.classes = *classes;
    for (const std::string& name : *classes) numbers.emplace(name, static_cast<std::int32_t>(numbers.size()));
  }
  for (bool first = true; record.next(); first = false) {
    if (first && is_header(record)) {
      record.take_names();
      continue;
    }
    const std::string& name = record.fields[1];
    const auto [known, is_new] = numbers.emplace(name, static_cast<std::int32_t>(numbers.size()));
    if (is_new && classes)
      throw record.bad("class '" + name +
                       "' has no training images; add some to the list of training images, or remove this line");
    if (is_new) list.classes.push_back(name);
    add_image(record, known->second, list);
  }
  if (list.labels.empty())
    throw Error(ErrorCode::data, path + ": no images in it; each line is a path, a comma and a class");
  if (!classes) sort_classes(list);
  return list;
}

// `each`: the number of targets in the training part; 0: as many as the first line has.
ImageList read_targets(const std::string& path, std::size_t each) {
  const auto reader = open_list(path, kWithTargets);
  ListReader& record = *reader;
  ImageList list;
  list.in_class_folders = false;
  list.targets_each = each;
  for (bool first = true; record.next(); first = false) {
    if (first && record.may_begin_with_names() && !number_in(record.fields[1])) {
      record.take_names();
      continue;
    }
    if (list.targets_each == 0) list.targets_each = record.fields.size() - 1;
    if (record.fields.size() != list.targets_each + 1)
      throw record.bad(std::to_string(record.fields.size() - 1) + " targets, but other images have " +
                       std::to_string(list.targets_each) + "; give each image as many");
    for (std::size_t i = 1; i < record.fields.size(); ++i) {
      const std::optional<float> target = number_in(record.fields[i]);
      if (!target) throw record.bad("'" + record.fields[i] + "' is not a finite number; targets are such as 0.5 or -2");
      list.targets.push_back(*target);
    }
    add_image(record, 0, list);
  }
  if (list.labels.empty()) throw Error(ErrorCode::data, path + ": no images in it; each line is " + kWithTargets.line);
  return list;
}

void require_first_image(const ImageList& list, const std::string& file, const std::string& folder) {
  std::error_code error;
  if (const std::string first = list.path(folder, 0); !fs::exists(first, error))
    throw Error(ErrorCode::data, file + ": its first image, " + first +
                                     ", does not exist; paths begin at the folder of " + "the list, or with a slash");
}

void require_list(const std::string& dataset, const LineForm& form, const std::string& file,
                  const std::string& folder) {
  std::error_code error;
  if (!fs::exists(file, error))
    throw Error(ErrorCode::data, dataset + ": no file " + file + "; write " + form.line + " for each image into " +
                                     folder + "/train.csv and " + folder +
                                     "/val.csv (or test.csv; or JSON lines into .jsonl), and set --data-path to their "
                                     "folder");
}

// Returns the first of these lists that exists, as CSV or JSON lines. If none exists, it returns the last name as CSV.
std::string list_in(const fs::path& folder, std::initializer_list<const char*> names) {
  std::error_code error;
  for (const std::string name : names)
    for (const char* ending : {".csv", ".jsonl"})
      if (const std::string file = (folder / (name + ending)).string(); fs::exists(file, error)) return file;
  return (folder / (std::string(*(names.end() - 1)) + ".csv")).string();
}

// Opens train.csv and, unless `train_only`, val.csv or test.csv, or these as .jsonl. read(file, training part or null)
// reads one.
template <typename Read>
DatasetPair open_lists(const std::string& dataset, const LineForm& form, const std::string& folder, std::int64_t side,
                       const Resizing& resizing, bool train_only, const Read& read) {
  require_size(dataset, side, resizing);
  const fs::path root = folder;
  const std::string train = list_in(root, {"train"}), test = list_in(root, {"val", "test"});
  require_list(dataset, form, train, folder);
  if (!train_only) require_list(dataset, form, test, folder);
  ImageList train_list = read(train, static_cast<const ImageList*>(nullptr)), test_list;
  if (!train_only) test_list = read(test, &train_list);
  require_first_image(train_list, train, folder);
  if (!train_only) require_first_image(test_list, test, folder);
  return {image_dataset(folder, std::move(train_list), side, resizing),
          train_only ? nullptr : image_dataset(folder, std::move(test_list), side, resizing)};
}

DatasetPair open_classes(const std::string& folder, std::int64_t side, const Resizing& resizing, bool train_only) {
  return open_lists("imagelist", kWithClass, folder, side, resizing, train_only,
                    [](const std::string& file, const ImageList* training) {
                      return read_list(file, training ? &training->classes : nullptr);
                    });
}
DatasetPair open_targets(const std::string& folder, std::int64_t side, const Resizing& resizing, bool train_only) {
  return open_lists("imagetargets", kWithTargets, folder, side, resizing, train_only,
                    [](const std::string& file, const ImageList* training) {
                      return read_targets(file, training ? training->targets_each : 0);
                    });
}

}  // namespace

namespace datasets {

std::shared_ptr<const Dataset> image_list_train(const std::string& folder, std::int64_t side,
                                                const Resizing& resizing) {
  return open_classes(folder, side, resizing, /*train_only=*/true).train;
}
DatasetPair image_list(const std::string& folder, std::int64_t side, const Resizing& resizing) {
  return open_classes(folder, side, resizing, /*train_only=*/false);
}
std::shared_ptr<const Dataset> image_targets_train(const std::string& folder, std::int64_t side,
                                                   const Resizing& resizing) {
  return open_targets(folder, side, resizing, /*train_only=*/true).train;
}
DatasetPair image_targets(const std::string& folder, std::int64_t side, const Resizing& resizing) {
  return open_targets(folder, side, resizing, /*train_only=*/false);
}

}  // namespace datasets
}  // namespace dp
