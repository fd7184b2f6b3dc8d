// The page that draws a report: page.html, with the data of the report as JSON in it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace dp {

// page.html. The build makes a source of it. Marks such as {{data}} stand where texts are inserted.
extern const std::string_view kReportPage;

// The whole page. `data`: {"runs": [...]} (read_run()), or a report of dp_bench. All texts are inserted as printable()
// shows them. `text` is shown where scripts are not allowed.
std::string filled_page(const std::string& title, const std::string& text, const nlohmann::ordered_json& data);

}  // namespace dp
