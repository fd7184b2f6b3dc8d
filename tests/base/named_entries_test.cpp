#include "dp/named_entries.h"

#include "support/catch.h"

namespace {

using namespace dp;

struct Fruit {
  std::string name;
  int seeds = 0;
};

TEST_CASE("named entries: an added entry is found by its name, and an unknown name is answered with all names") {
  std::vector<Fruit> fruits{{"apple", 5}};
  add_entry(fruits, Fruit{"pear_2.0", 7}, "fruit");
  CHECK(find_entry(fruits, "pear_2.0", "fruit").seeds == 7);
  CHECK(find_entry(fruits, "apple", "fruit").seeds == 5);
  CHECK_THROWS_WITH(find_entry(fruits, "Apple", "fruit"),
                    "fruit 'Apple' does not exist; choose one of apple, pear_2.0");
}

TEST_CASE("named entries: a name that exists, or that no folder or command line should contain, is rejected") {
  std::vector<Fruit> fruits{{"apple", 5}};
  const auto refusal = [&](const std::string& name) {
    try {
      add_entry(fruits, Fruit{name, 1}, "fruit");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::usage);
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  CHECK(refusal("apple") == "fruit 'apple' exists already");
  for (const char* name : {"", ".hidden", "..", "a/b", "a b", "-a", "a,b", "\xc3\xa4", "a\n"})
    CHECK(refusal(name) ==
          "fruit '" + std::string(name) + "' cannot be added; its name must consist of letters, digits, _ and .");
  CHECK(fruits.size() == 1);
  for (const char* name : {"b", "B_2", "v1.5", "_"}) CHECK(refusal(name) == "accepted");
}

}  // namespace
