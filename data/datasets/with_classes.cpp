// A data set with the labels of another list of classes.
#include <map>

#include "data/datasets/forwarded_dataset.h"
#include "dp/dataset.h"
#include "dp/error.h"
#include "dp/trainer.h"

namespace dp {
namespace {

using Names = std::vector<std::string>;

class Relabelled final : public ForwardedDataset {
 public:
  Relabelled(std::shared_ptr<const Dataset> images, const Names& classes, std::vector<std::int32_t> labels)
      : ForwardedDataset(std::move(images)), classes_(classes), labels_(std::move(labels)) {}

  std::int64_t classes() const override { return static_cast<std::int64_t>(classes_.size()); }
  std::vector<std::string> class_names() const override { return classes_; }
  std::int32_t label(std::int64_t index) const override {
    const std::int32_t label = whole().label(index);
    const bool valid = label >= 0 && static_cast<std::size_t>(label) < labels_.size();
    return valid ? labels_[static_cast<std::size_t>(label)] : -1;  // the loader rejects it
  }

 private:
  Names classes_;
  std::vector<std::int32_t> labels_;  // by the label of the whole data set
};

std::map<std::string, std::int32_t> numbered(const Names& names) {
  std::map<std::string, std::int32_t> numbers;
  for (const std::string& name : names)
    if (!numbers.emplace(name, static_cast<std::int32_t>(numbers.size())).second)
      throw Error(ErrorCode::usage, "two classes are named '" + printable(name) + "'; give each a name of its own");
  return numbers;
}

std::shared_ptr<const Dataset> relabelled(const std::shared_ptr<const Dataset>& part, const Names& classes) {
  const Names own = part->class_names();
  if (own.empty()) throw Error(ErrorCode::usage, "the data set has no class names, so they cannot be matched");
  numbered(own);
  const auto numbers = numbered(classes);
  std::vector<std::int32_t> labels;
  for (const std::string& name : own) {
    const auto at = numbers.find(name);
    if (at == numbers.end())
      throw Error(ErrorCode::data, "the data set has the class '" + printable(name) + "', which is not among the " +
                                       std::to_string(classes.size()) +
                                       " classes of the weights; rename or remove it, or train a new classifier with "
                                       "--init FILE --init-partial");
    labels.push_back(at->second);
  }
  return std::make_shared<Relabelled>(part, classes, std::move(labels));
}

}  // namespace

DatasetPair with_classes(const DatasetPair& data, const std::vector<std::string>& classes) {
  return {relabelled(data.train, classes), relabelled(data.test, classes)};
}

}  // namespace dp
