// Labels by the class names of another list.
#include "data/memory_dataset.h"
#include "data/refusal.h"
#include "dp/dataset.h"
#include "dp/error.h"
#include "support/catch.h"

using dp::test::data_refusal;

namespace {

dp::DatasetPair pair_of(const std::vector<std::string>& names) {
  const auto part = std::make_shared<dp::MemoryDataset>(
      dp::Shape{1, 1, 1}, 3, dp::Normalization{{0.5f}, {0.5f}}, std::vector<std::uint8_t>{7, 8, 9, 10},
      std::vector<std::int32_t>{0, 1, 2, 0}, dp::Augmentation{.padding = 2}, names);
  return {part, part};
}

}  // namespace

TEST_CASE("labels follow the names of another list, which may have further classes") {
  const dp::DatasetPair matched = dp::with_classes(pair_of({"cow", "bee", "dog"}), {"ant", "bee", "cow", "dog"});
  for (const auto& part : {matched.train, matched.test}) {
    CHECK(part->classes() == 4);
    CHECK(part->class_names() == std::vector<std::string>{"ant", "bee", "cow", "dog"});
    for (const auto& [index, label] : {std::pair(0, 2), {1, 1}, {2, 3}, {3, 2}}) CHECK(part->label(index) == label);
    CHECK(part->image(2) == std::vector<std::uint8_t>{9});
    CHECK(part->size() == 4);
    CHECK(part->augmentation().padding == 2);
    CHECK_FALSE(part->varies());
  }
}

TEST_CASE("classes that the list lacks, repeated names and data sets without names are refused") {
  CHECK_THAT(data_refusal([&] {
               dp::with_classes(pair_of({"cow", "bee", "wasp"}), {"bee", "cow", "dog"});
             }),
             Catch::StartsWith("the data set has the class 'wasp', which is not among the 3 classes of the weights; "));
  CHECK_THROWS_WITH(dp::with_classes(pair_of({}), {"a"}), Catch::Contains("no class names"));
  CHECK_THROWS_WITH(dp::with_classes(pair_of({"a", "a", "b"}), {"a", "b"}),
                    Catch::Contains("two classes are named 'a'"));
  CHECK_THROWS_WITH(dp::with_classes(pair_of({"a", "b", "c"}), {"a", "b", "c", "b"}),
                    Catch::Contains("two classes are named 'b'"));
}
