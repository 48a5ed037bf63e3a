#include "server/commands/ask/explain.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <boost/json/array.hpp>
#include <cstdint>
#include <cstdio>
#include <utility>
#include <vector>

#include "base/index.h"
#include "server/commands/ask/answer.h"
#include "server/commands/commands.h"
#include "server/commands/model_files/model_path.h"
#include "server/json/text.h"

namespace quire {
namespace json = boost::json;
namespace {

constexpr std::size_t kStripCells = 64, kBarCells = 40;

/// The fates of blocks and their signs in a strip.
constexpr std::array<std::pair<std::string_view, char>, 4> kSigns = {
    {{"reused", '#'}, {"recomputed", 'r'}, {"computed", 'c'}, {"dropped", '.'}}};

char sign_of(std::string_view action) {
  for (const auto& [name, sign] : kSigns) {
    if (name == action) return sign;
  }
  return '?';
}

/// Returns at most kStripCells signs. A cell of several blocks has the sign of most of them.
std::string strip_of(const std::string& signs) {
  if (signs.size() <= kStripCells) return signs;
  std::string out;
  for (std::size_t i = 0; i < kStripCells; ++i) {
    const std::size_t begin = i * signs.size() / kStripCells,
                      end = (i + 1) * signs.size() / kStripCells;
    std::array<int, 256> count{};
    char best = signs[begin];
    for (std::size_t b = begin; b < end; ++b) {
      const auto sign = static_cast<unsigned char>(signs[b]);
      if (++count[sign] > count[static_cast<unsigned char>(best)]) best = signs[b];
    }
    out.push_back(best);
  }
  return out;
}

double number_of(const json::object& o, const char* key) {
  const auto* v = o.if_contains(key);
  return v && v->is_number() ? v->to_number<double>() : 0;
}

/// Returns a number without digits that say nothing.
std::string short_number(const json::object& o, const char* key) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", number_of(o, key));
  return text;
}

std::string milliseconds(double ms) {
  char text[32];
  std::snprintf(text, sizeof text, ms < 10 ? "%9.2f ms" : "%9.0f ms", ms);
  return text;
}

void add_policy(const json::object& policy, std::string& out) {
  const std::string asked = member_text(policy, "strategy_asked");
  out += "Strategy  " + member_text(policy, "strategy");
  if (asked != member_text(policy, "strategy")) out += " (asked for " + asked + ")";
  out += ", keeps " + short_number(policy, "keep_ratio") + ", compression " +
         member_text(policy, "compress") + ", decoding " + member_text(policy, "decode") + "\n";
  for (const char* key : {"reason", "fallback"}) {
    const auto* v = policy.if_contains(key);
    if (v && v->is_string())
      out += (key[0] == 'r' ? "  because " : "  instead ") + std::string(v->as_string()) + "\n";
  }
}

/// Adds each document with its strip. Blocks come in the order of the prompt.
void add_documents(const json::object& explained, std::string& out) {
  std::vector<std::pair<std::string, std::string>> strips;  // id, signs
  for (const auto& item : explained.at("blocks").as_array()) {
    const auto& b = item.as_object();
    const auto& id = b.at("document_id");
    const std::string name = id.is_string() ? std::string(id.as_string()) : "(inline)";
    if (strips.empty() || strips.back().first != name) strips.emplace_back(name, "");
    strips.back().second.push_back(sign_of(b.at("action").as_string()));
  }
  const auto& documents = explained.at("documents").as_array();
  for (const auto& [name, signs] : strips) {
    out += "\n" + name;
    for (const auto& item : documents) {
      const auto& d = item.as_object();
      if (member_text(d, "id") != name) continue;
      out += "  " + short_number(d, "kept_tokens") + " of " + short_number(d, "tokens") +
             " tokens kept, " + short_number(d, "recomputed_tokens") + " computed again";
      if (const auto* score = d.if_contains("score"); score && score->is_number())
        out += ", found with score " + short_number(d, "score");
    }
    out += "\n  " + strip_of(signs) + "\n";
  }
  if (!strips.empty()) {
    out += "\nA sign is " + member_text(explained, "block_tokens") +
           " tokens, or several such blocks:";
    for (const auto& [name, sign] : kSigns)
      out += std::string(" ") + sign + " " + std::string(name);
    out += "\n";
  }
}

/// Adds the stages, with bars from the query's arrival on.
void add_spans(const json::object& explained, std::string& out) {
  const auto& spans = explained.at("spans").as_array();
  double end = 0;
  for (const auto& item : spans) {
    const auto& s = item.as_object();
    end = std::max(end, number_of(s, "start_ms") + number_of(s, "ms"));
  }
  if (end <= 0) return;
  out += "\nTime\n";
  const auto cell = [&](double ms) {
    return static_cast<std::size_t>(ms / end * static_cast<double>(kBarCells));
  };
  for (const auto& item : spans) {
    const auto& s = item.as_object();
    const double start = number_of(s, "start_ms"), ms = number_of(s, "ms");
    std::string name = member_text(s, "name");
    name.resize(std::max<std::size_t>(name.size(), 12), ' ');
    out += "  " + name + milliseconds(ms) + "  " + std::string(cell(start), ' ') +
           std::string(std::max<std::size_t>(1, cell(start + ms) - cell(start)), '=') + "\n";
  }
}

void add_misses(const json::object& query, std::string& out) {
  const auto& cache = query.at("cache").as_object();
  for (const auto& item : cache.at("misses").as_array()) {
    const auto& m = item.as_object();
    out += "\nNot from the cache: " + member_text(m, "document_id") + " (" +
           member_text(m, "reason") + ", " + member_text(m, "tokens") + " tokens)";
  }
  if (!cache.at("misses").as_array().empty()) out += "\n";
}

/// Returns the id of the latest query of the service.
Result<std::string> latest_query(const ClientFlags& flags) {
  ClientRequest request;
  request.target = "/v1/queries?limit=1";
  QUIRE_ASSIGN_OR_RETURN(const auto reply, client_json(flags, std::move(request)));
  const auto& data = reply.at("data").as_array();
  if (data.empty()) return Status::not_found("the service was asked nothing yet");
  return member_text(data[0].as_object(), "id");
}

struct ExplainFlags {
  ClientFlags client;
  std::string id;
  bool as_json = false;
};

int explain(const ExplainFlags& flags) {
  auto id = flags.id.empty() ? latest_query(flags.client) : Result<std::string>(flags.id);
  if (!id.ok()) return complain(id.status());
  if (flags.as_json) {
    ClientRequest request;
    request.target = "/v1/queries/" + percent_encode(*id) + "/explain";
    const auto reply = client_call(flags.client, std::move(request));
    if (!reply.ok()) return complain(reply.status());
    std::printf("%s\n", reply->body.c_str());
    return 0;
  }
  const auto text = explain_query(flags.client, *id);
  if (!text.ok()) return complain(text.status());
  std::fputs(text->c_str(), stdout);
  return 0;
}

}  // namespace

Result<std::string> explain_query(const ClientFlags& flags, const std::string& id) {
  ClientRequest request;
  request.target = "/v1/queries/" + percent_encode(id);
  QUIRE_ASSIGN_OR_RETURN(const auto query_reply, client_json(flags, request));
  request.target += "/explain";
  QUIRE_ASSIGN_OR_RETURN(const auto explained_reply, client_json(flags, std::move(request)));
  const auto& query = query_reply.as_object();
  const auto& explained = explained_reply.as_object();
  const auto& usage = query.at("usage").as_object();
  const auto& fates = usage.at("cache_details").as_object();
  const auto& timings = query.at("timings").as_object();
  std::string out = "Query     " + id + ", " + member_text(query, "created_at") + "\n";
  add_policy(explained.at("policy").as_object(), out);
  out += "Prompt    " + member_text(usage, "prompt_tokens") +
         " tokens: " + member_text(fates, "reused_tokens") + " reused, " +
         member_text(fates, "recomputed_tokens") + " recomputed, " +
         member_text(fates, "computed_tokens") + " computed, " +
         member_text(fates, "dropped_tokens") + " dropped\n";
  out += "Answer    " + member_text(usage, "completion_tokens") + " tokens; first one after" +
         milliseconds(number_of(timings, "ttft_ms")) + ", all after" +
         milliseconds(number_of(timings, "total_ms")) + "\n";
  add_documents(explained, out);
  add_misses(query, out);
  add_spans(explained, out);
  return out;
}

void add_explain_command(CLI::App& app, CommandRun& run) {
  auto flags = std::make_shared<ExplainFlags>();
  auto* c = app.add_subcommand(
      "explain",
      "Why a query was answered as it was: strategy and reason, what became of every block, and "
      "what took how long");
  c->add_option("ID", flags->id, "The query (qry_...); none: the latest");
  add_client_flags(*c, flags->client);
  c->add_flag("--json", flags->as_json, "Print the explanation as JSON, with every block");
  c->callback([flags, &run] { run = [flags] { return explain(*flags); }; });
}

}  // namespace quire
