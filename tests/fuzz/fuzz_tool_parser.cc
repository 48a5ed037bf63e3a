// Parses models' answers for calls of tools, in one piece and in two. Nothing may crash, and both
// find the same.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "engine/chat/tool_parser.h"

using namespace quire;

namespace {

struct Found {
  std::string text;
  std::vector<std::string> calls;
  bool operator==(const Found&) const = default;
};

Found parse(ToolStyle style, std::string_view first, std::string_view rest) {
  ToolParser parser(style, {"f", "get"}, 4);
  std::vector<ToolEvent> events;
  parser.push(first, events);
  parser.push(rest, events);
  parser.finish(events);
  Found out;
  for (const ToolEvent& e : events) {
    if (e.kind == ToolEvent::Kind::kText) {
      out.text += e.text;
    } else if (e.kind == ToolEvent::Kind::kCall) {
      if (e.index != out.calls.size() || e.text.empty()) std::abort();
      out.calls.push_back(e.text + " ");
    } else {
      if (e.index + 1 != out.calls.size() || e.text.empty()) std::abort();
      out.calls.back() += e.text;
    }
  }
  if (out.calls.size() > 4 || parser.num_calls() != out.calls.size()) std::abort();
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  const auto style = static_cast<ToolStyle>(data[0] % 4);
  const std::size_t cut = data[1] % (text.size() + 1);
  if (!(parse(style, text, {}) == parse(style, text.substr(0, cut), text.substr(cut))))
    std::abort();
  return 0;
}
