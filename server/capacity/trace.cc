#include "server/capacity/trace.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <charconv>
#include <cstdio>
#include <unordered_set>
#include <utility>

#include "base/json_parse.h"
#include "base/json_reader.h"
#include "fidelity/line_source.h"
#include "server/json/text.h"

namespace quire::capacity {
namespace json = boost::json;
namespace {

constexpr std::int64_t kMaxTokens = 1'000'000'000, kMaxNumber = 1ll << 53;
constexpr double kMaxSeconds = 1e10;
constexpr std::size_t kMaxContexts = 65536, kMaxKeyBytes = 1024;
/// Tokens of a block of Mooncake's traces.
constexpr std::int64_t kMooncakeBlock = 512;

/// Returns the number of 16 lower-case hexadecimal digits; none: the text is something else.
std::optional<std::uint64_t> hex_number(std::string_view text) {
  std::uint64_t out = 0;
  if (text.size() != 16 || text.find_first_of("ABCDEF") != std::string_view::npos) return {};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out, 16);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return out;
}

/// Returns what stands for a text. 16 hexadecimal digits without a namespace stand for themselves,
/// so that a trace that was written is read as the same.
std::uint64_t number_of(std::string_view ns, std::string_view text) {
  if (ns.empty() || ns == "default")
    if (const auto number = hex_number(text)) return *number;
  std::uint64_t hash = 0xcbf29ce484222325ull;  // FNV-1a
  const auto add = [&hash](std::string_view bytes) {
    for (const char c : bytes) {
      hash ^= static_cast<unsigned char>(c);
      hash *= 0x100000001b3ull;
    }
  };
  if (ns != "default") add(ns);
  add(std::string_view("\0", 1));
  add(text);
  return mix(hash);
}

std::string hex_of(std::uint64_t number) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(number));
  return text;
}

/// Returns what routes a question over these contexts where nothing else is said: their set.
std::uint64_t set_affinity(const std::vector<TraceContext>& contexts) {
  if (contexts.empty()) return 0;
  std::vector<std::uint64_t> keys;
  for (const TraceContext& c : contexts) keys.push_back(c.key);
  std::ranges::sort(keys);
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  std::uint64_t hash = 0;
  for (const std::uint64_t key : keys) hash = mix(hash ^ key);
  return hash == 0 ? 1 : hash;
}

std::uint64_t affinity_of_text(const std::string& text, const std::vector<TraceContext>& contexts) {
  const std::uint64_t number = text.empty() ? 0 : number_of({}, text);
  return number != 0 ? number : set_affinity(contexts);
}

std::uint32_t count(std::int64_t n) { return static_cast<std::uint32_t>(n); }

void read_quire(JsonReader& r, TraceRequest& out) {
  std::string ns, affinity;
  std::int64_t question = 1, answer = 1;
  r.number("time", out.seconds, 0, kMaxSeconds, JsonNeed::kRequired);
  r.string("namespace", ns, kMaxKeyBytes);
  r.string("affinity", affinity, kMaxKeyBytes);
  r.integer("question_tokens", question, 1, kMaxTokens, JsonNeed::kRequired);
  r.integer("answer_tokens", answer, 1, kMaxTokens);
  const json::array* documents = r.array("documents", 0, kMaxContexts, JsonNeed::kRequired);
  for (std::size_t i = 0; documents != nullptr && r.ok() && i < documents->size(); ++i) {
    JsonReader d((*documents)[i], r.path_of("documents[" + std::to_string(i) + "]"));
    std::string key;
    std::int64_t tokens = 0;
    d.string("key", key, kMaxKeyBytes, JsonNeed::kRequired);
    d.integer("tokens", tokens, 1, kMaxTokens, JsonNeed::kRequired);
    d.finish();
    r.adopt(d.error());
    out.contexts.push_back({number_of(ns, key), count(tokens)});
  }
  r.finish();
  out.question_tokens = count(question);
  out.answer_tokens = count(answer);
  out.affinity = affinity_of_text(affinity, out.contexts);
}

void read_mooncake(JsonReader& r, std::unordered_map<std::int64_t, std::uint64_t>& conversations,
                   TraceRequest& out) {
  double ms = 0;
  std::int64_t input = 0, output = 0;
  r.number("timestamp", ms, 0, kMaxSeconds * 1000, JsonNeed::kRequired);
  r.integer("input_length", input, 1, kMaxTokens, JsonNeed::kRequired);
  r.integer("output_length", output, 0, kMaxTokens, JsonNeed::kRequired);
  const json::array* blocks = r.array("hash_ids", 1, kMaxTokens / kMooncakeBlock,
                                      JsonNeed::kRequired);
  if (!r.ok()) return;
  const std::int64_t wanted = (input + kMooncakeBlock - 1) / kMooncakeBlock;
  if (std::cmp_not_equal(blocks->size(), wanted))
    return r.fail("hash_ids", "hash_ids has " + std::to_string(blocks->size()) + " ids; " +
                                  std::to_string(input) + " tokens of input_length are " +
                                  std::to_string(wanted) + " blocks of 512");
  std::vector<std::int64_t> ids;
  for (const json::value& v : *blocks) {
    const auto id = whole_number(v);
    if (!id || *id < 0 || *id > kMaxNumber)
      return r.fail("hash_ids", "hash_ids must hold whole numbers from 0 on");
    ids.push_back(*id);
  }
  out.seconds = ms / 1000;
  out.answer_tokens = count(std::max<std::int64_t>(output, 1));
  // The last block is rarely full and never alone cached: it is the question.
  out.question_tokens = count(input - kMooncakeBlock * (wanted - 1));
  for (std::size_t i = 0; i + 1 < ids.size(); ++i)
    out.contexts.push_back(
        {mix(static_cast<std::uint64_t>(ids[i])), static_cast<std::uint32_t>(kMooncakeBlock)});
  // Nearly all begin with one system prompt. Who shares more than it goes on with a conversation.
  out.affinity = mix(~static_cast<std::uint64_t>(ids.back())) | 1;
  for (std::size_t i = ids.size(); i-- > 1;) {
    const auto known = conversations.find(ids[i]);
    if (known == conversations.end()) continue;
    out.affinity = known->second;
    break;
  }
  for (std::size_t i = 1; i < ids.size(); ++i) conversations.emplace(ids[i], out.affinity);
}

/// Reads "key:tokens key:tokens".
bool read_contexts(std::string_view text, std::vector<TraceContext>& out) {
  while (!text.empty()) {
    const std::string_view one = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(text.size(), one.size() + 1));
    const std::size_t colon = one.find(':');
    if (colon == std::string_view::npos || out.size() >= kMaxContexts) return false;
    const auto key = hex_number(one.substr(0, colon));
    std::int64_t tokens = 0;
    const char* last = one.data() + one.size();
    const auto [end, error] = std::from_chars(one.data() + colon + 1, last, tokens);
    if (!key || error != std::errc() || end != last || tokens < 1 || tokens > kMaxTokens)
      return false;
    out.push_back({*key, count(tokens)});
  }
  return true;
}

/// Returns whether the line is about a question and tells its contexts.
bool read_log(JsonReader& r, const json::object& line, TraceRequest& out) {
  const json::value* message = r.raw("msg");
  const bool request = message != nullptr && message->is_string() &&
                       message->as_string() == "request";
  if (!request || !r.has("contexts")) return false;
  std::string ts, contexts;
  double ms = 0;
  std::int64_t prompt = 0, answer = 0;
  r.string("ts", ts, kMaxKeyBytes, JsonNeed::kRequired);
  r.string("contexts", contexts, SIZE_MAX, JsonNeed::kRequired);
  r.number("ms", ms, 0, kMaxSeconds * 1000, JsonNeed::kRequired);
  r.integer("prompt_tokens", prompt, 1, kMaxTokens, JsonNeed::kRequired);
  r.integer("completion_tokens", answer, 0, kMaxTokens);
  if (!r.ok()) return false;
  const auto at = parse_rfc3339(ts);
  if (!at.ok()) r.fail("ts", "ts is '" + ts + "'; it must be a time such as 2025-03-01T10:00:00Z");
  if (contexts != "none" && !read_contexts(contexts, out.contexts))
    r.fail("contexts",
           "contexts must be 'none' or pairs of 16 hexadecimal digits and tokens, such "
           "as 00c0ffee00c0ffee:512, with spaces between");
  std::int64_t cached = 0;
  for (const TraceContext& c : out.contexts) cached += c.tokens;
  // The log is written when the answer is complete.
  if (at.ok()) out.seconds = std::max(0.0, (static_cast<double>(*at) - ms) / 1000);
  out.question_tokens = count(std::clamp<std::int64_t>(prompt - cached, 1, kMaxTokens));
  out.answer_tokens = count(std::max<std::int64_t>(answer, 1));
  // Sixteen decimal digits are logged as a number.
  std::string affinity;
  if (const json::value* given = line.if_contains("affinity"))
    affinity = given->is_string() ? std::string(given->as_string()) : json::serialize(*given);
  out.affinity = affinity_of_text(affinity, out.contexts);
  return r.ok();
}

}  // namespace

std::uint64_t mix(std::uint64_t bits) {
  bits += 0x9e3779b97f4a7c15ull;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9ull;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebull;
  return bits ^ (bits >> 31);
}

Result<std::optional<TraceRequest>> TraceParser::parse(std::string_view line) {
  ++line_number_;
  const std::string where = "line " + std::to_string(line_number_) + ": ";
  if (line.find_first_not_of(" \t\r") == std::string_view::npos)
    return std::optional<TraceRequest>();
  const auto value = parse_json(line, kOutsideJson);
  if (!value.ok()) return Status::invalid("", where + value.status().message());
  if (!value->is_object()) return Status::invalid("", where + "it must be a JSON object");
  const json::object& o = value->as_object();
  if (!form_) {
    if (o.contains("documents")) {
      form_ = TraceForm::kQuire;
    } else if (o.contains("hash_ids")) {
      form_ = TraceForm::kMooncake;
    } else if (o.contains("msg")) {
      form_ = TraceForm::kLog;
    } else {
      return Status::invalid(
          "documents", where +
                           "it has neither documents (a trace of Quire), nor hash_ids (one of "
                           "Mooncake), nor msg (the service's log)");
    }
  }
  JsonReader r(*value, "");
  TraceRequest out;
  bool given = true;
  if (form_ == TraceForm::kQuire) {
    read_quire(r, out);
  } else if (form_ == TraceForm::kMooncake) {
    read_mooncake(r, conversations_, out);
  } else {
    given = read_log(r, o, out);
  }
  if (r.error()) return Status::invalid(r.error()->path, where + r.error()->message);
  if (!given) return std::optional<TraceRequest>();
  return std::optional<TraceRequest>(std::move(out));
}

std::string trace_json(const TraceRequest& request) {
  json::array documents;
  for (const TraceContext& c : request.contexts)
    documents.push_back(json::object{{"key", hex_of(c.key)}, {"tokens", c.tokens}});
  json::object o{{"time", request.seconds},
                 {"documents", std::move(documents)},
                 {"question_tokens", request.question_tokens},
                 {"answer_tokens", request.answer_tokens}};
  if (request.affinity != 0) o["affinity"] = hex_of(request.affinity);
  return to_text(o);
}

Trace::Trace(std::vector<TraceRequest> requests) {
  std::ranges::stable_sort(requests, {}, &TraceRequest::seconds);
  std::unordered_set<std::uint64_t> seen;
  std::unordered_set<std::uint64_t> in_request;
  for (const TraceRequest& r : requests) {
    Entry e;
    e.seconds = r.seconds - requests.front().seconds;
    e.affinity = r.affinity;
    e.first_context = contexts_.size();
    e.question_tokens = r.question_tokens;
    e.answer_tokens = r.answer_tokens;
    in_request.clear();
    for (const TraceContext& c : r.contexts) {
      if (!in_request.insert(c.key).second) continue;
      contexts_.push_back(c);
      context_tokens_ += c.tokens;
      if (seen.insert(c.key).second) distinct_tokens_ += c.tokens;
    }
    e.num_contexts = static_cast<std::uint32_t>(contexts_.size() - e.first_context);
    entries_.push_back(e);
  }
  distinct_contexts_ = seen.size();
  const double span = entries_.empty() ? 0 : entries_.back().seconds;
  if (span > 0)
    period_ = span + span / static_cast<double>(std::max<std::size_t>(entries_.size() - 1, 1));
}

Result<std::vector<TraceRequest>> read_trace(const std::string& path) {
  const auto lines = open_lines(path);
  if (!lines.ok()) return lines.status().with_field("trace");
  TraceParser parser;
  std::vector<TraceRequest> out;
  for (;;) {
    const auto line = (*lines)->next();
    if (!line.ok()) return line.status().with_context(path).with_field("trace");
    if (!*line) break;
    auto request = parser.parse(**line);
    if (!request.ok()) return request.status().with_context(path);
    if (*request) out.push_back(std::move(**request));
    if (out.size() > kMaxRequests)
      return Status::invalid("trace", path + " has more than " + std::to_string(kMaxRequests) +
                                          " requests; give a part of it, and --copies");
  }
  if (out.empty())
    return Status::invalid("trace",
                           path + (parser.form() == TraceForm::kLog
                                       ? " is a log without contexts; the service writes them with "
                                         "log.contexts = true and log.format = \"json\""
                                       : " has no request"));
  return out;
}

}  // namespace quire::capacity
