// Lists of entries with names, which a program may extend: models::registry() and datasets::registry().
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dp/error.h"

namespace dp {

// `what`: "model". Error(usage) for an unknown name lists the names.
template <typename Entry>
const Entry& find_entry(const std::vector<Entry>& entries, std::string_view name, const char* what) {
  std::string names;
  for (const Entry& entry : entries) {
    if (entry.name == name) return entry;
    names += (names.empty() ? "" : ", ") + entry.name;
  }
  throw Error(ErrorCode::usage,
              std::string(what) + " '" + std::string(name) + "' does not exist; choose one of " + names);
}

// Error(usage) if the name exists already, or if it contains anything but letters, digits, '_' and '.'.
template <typename Entry>
void add_entry(std::vector<Entry>& entries, Entry entry, const char* what) {
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
  };
  const std::string name = std::string(what) + " '" + entry.name + "'";
  if (entry.name.empty() || entry.name.front() == '.' || !std::ranges::all_of(entry.name, fits))
    throw Error(ErrorCode::usage, name + " cannot be added; its name must consist of letters, digits, _ and .");
  if (std::ranges::find(entries, entry.name, &Entry::name) != entries.end())
    throw Error(ErrorCode::usage, name + " exists already");
  entries.push_back(std::move(entry));
}

}  // namespace dp
