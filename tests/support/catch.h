// Catch2 version 2 or 3, and skipping that CTest reports as skipped.
#pragma once

#if defined(DP_CATCH_V3)
#include <catch2/catch_all.hpp>
using Catch::Approx;
namespace Catch {  // version 2's name
inline auto Contains(const std::string& part) { return Matchers::ContainsSubstring(part); }
}  // namespace Catch
#else
#include <catch2/catch.hpp>
#endif

#include <string>

namespace dp::test {

// Prints the reason and marks the program as skipped; the caller must return. A failed test takes precedence over a
// skip.
void mark_skipped(const std::string& reason);
bool any_skipped();

}  // namespace dp::test

// Returns from the function that contains it: a test case, or a function after which the test case does nothing. Does
// not compile in a constructor, which cannot end the test case.
#define DP_SKIP(reason) return ::dp::test::mark_skipped(reason)
