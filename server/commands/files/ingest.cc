#include <unistd.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <boost/json/array.hpp>
#include <cstdio>
#include <filesystem>

#include "base/index.h"
#include "base/json_parse.h"
#include "server/commands/client.h"
#include "server/commands/commands.h"
#include "server/commands/model_path.h"
#include "server/config/config.h"
#include "server/json/document_request.h"
#include "server/json/text.h"

namespace quire {
namespace json = boost::json;
namespace {

struct IngestFlags {
  ClientFlags client;
  std::vector<std::string> files;
  std::int64_t max_tokens = 512, overlap = 0, context_tokens = 4096;
  bool pinned = false, quiet = false;
};

/// Turns a file name into a document id; characters that an id cannot have become '-'.
std::string id_of(const std::string& file) {
  std::string id = std::filesystem::path(file).stem().string();
  for (char& c : id) {
    const bool ok = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                    c == '.' || c == '_' || c == ':' || c == '-';
    if (!ok) c = '-';
  }
  id.erase(0, std::min(id.find_first_not_of(".-_:"), id.size()));
  if (id.size() > 128) id.resize(128);
  return id.empty() ? "document" : id;
}

/// Adds one document per file, or several for .jsonl. Markdown is chunked by headings, other text
/// by tokens.
Status add_file(const std::string& file, json::array& out) {
  QUIRE_ASSIGN_OR_RETURN(const std::string text, read_file(file, std::size_t{1} << 30));
  const std::string extension = std::filesystem::path(file).extension().string();
  if (extension == ".jsonl" || extension == ".ndjson") {
    std::size_t begin = 0, line_number = 0;
    while (begin < text.size()) {
      const auto end = std::min(text.find('\n', begin), text.size());
      const std::string line = text.substr(begin, end - begin);
      begin = end + 1;
      ++line_number;
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
      auto value = parse_json(line);
      const std::string where = file + ", line " + std::to_string(line_number);
      if (!value.ok()) return Status::invalid(file, where + ": " + value.status().message());
      DocumentInput checked;
      if (const auto e = read_document(*value, "document", checked))
        return Status::invalid(file, where + ": " + e->message);
      out.push_back(std::move(*value));
    }
    return {};
  }
  if (extension != ".txt" && extension != ".md" && extension != ".markdown" && !extension.empty())
    return Status::invalid(file, file + ": only .txt, .md and .jsonl files are read");
  if (const auto bad = invalid_utf8_at(text))
    return Status::invalid(file, file + " is not valid UTF-8 at byte " + std::to_string(*bad));
  json::object o;
  o["id"] = id_of(file);
  o["title"] = std::filesystem::path(file).filename().string();
  o["text"] = text;
  o["metadata"] = json::object{{"source", file}};
  out.push_back(std::move(o));
  return {};
}

void draw(double ratio, std::int64_t done, std::int64_t total, double speed) {
  constexpr int kWidth = 32;
  const int full = static_cast<int>(ratio * kWidth);
  std::string bar(to_size(std::clamp(full, 0, kWidth)), '#');
  bar.resize(kWidth, '.');
  std::fprintf(stderr, "\r[%s] %3.0f%%  %lld/%lld tokens  %.0f tokens/s ", bar.c_str(), ratio * 100,
               static_cast<long long>(done), static_cast<long long>(total), speed);
  std::fflush(stderr);
}

/// Follows the job until it ends and returns its final state.
Result<json::value> follow(const IngestFlags& flags, const std::string& job_id, bool bar) {
  Result<json::value> last = Status::io("the server ended the job's events early");
  SseReader reader;
  ClientRequest request;
  request.target = "/v1/jobs/" + job_id + "/events";
  const auto reply = client_call(flags.client, std::move(request), [&](std::string_view piece) {
    return reader.feed(piece, [&](const std::string& name, const std::string& data) {
      auto value = parse_json(data);
      if (!value.ok() || !value->is_object()) return true;
      if (bar && value->as_object().contains("progress")) {
        const auto& p = value->as_object().at("progress").as_object();
        draw(p.at("ratio").to_number<double>(), p.at("tokens_done").to_number<std::int64_t>(),
             p.at("tokens_total").to_number<std::int64_t>(),
             p.at("tokens_per_second").to_number<double>());
      }
      if (name != "done") return true;
      last = std::move(*value);
      return false;
    });
  });
  if (bar) std::fprintf(stderr, "\n");
  if (!reply.ok()) return reply.status();
  return last;
}

int report(const json::array& results, const json::array& sent, bool quiet) {
  int failures = 0;
  for (const auto& item : results) {
    const auto& o = item.as_object();
    const std::string result = o.at("result").is_string() ? std::string(o.at("result").as_string())
                                                          : "pending";
    std::string name = o.at("id").is_string() ? std::string(o.at("id").as_string()) : "";
    if (name.empty()) {
      const auto& source = sent.at(o.at("index").to_number<std::size_t>()).as_object();
      name = source.contains("id") ? to_text(source.at("id"))
                                   : "document " + to_text(o.at("index"));
    }
    if (result == "failed" || result == "cancelled") {
      ++failures;
      const auto* e = o.if_contains("error");
      std::fprintf(
          stderr, "%-9s %s: %s\n", result.c_str(), name.c_str(),
          e && e->is_object() ? std::string(e->as_object().at("message").as_string()).c_str() : "");
    } else if (!quiet) {
      std::printf("%-9s %s  %s tokens, %s blocks\n", result.c_str(), name.c_str(),
                  to_text(o.at("tokens")).c_str(), to_text(o.at("blocks")).c_str());
    }
  }
  return failures;
}

int ingest(const IngestFlags& flags) {
  json::array all;
  bool markdown = !flags.files.empty();
  for (const auto& file : flags.files) {
    if (const auto s = add_file(file, all); !s.ok()) return complain(s.message());
    const auto extension = std::filesystem::path(file).extension().string();
    markdown = markdown && (extension == ".md" || extension == ".markdown");
  }
  if (all.empty()) return complain("the files hold no document");
  int failures = 0;
  std::size_t begin = 0;
  while (begin < all.size()) {
    // Each call has at most 256 documents and about 16 MiB.
    json::array part;
    std::size_t bytes = 0;
    while (begin < all.size() && part.size() < 256 && (part.empty() || bytes < (16u << 20))) {
      part.push_back(all[begin++]);
      bytes += to_text(part.back()).size();
    }
    json::object body;
    body["documents"] = part;
    json::object chunking;
    chunking["strategy"] = markdown ? "markdown" : "tokens";
    chunking["max_tokens"] = flags.max_tokens;
    if (!markdown) chunking["overlap_tokens"] = flags.overlap;
    chunking["context_tokens"] = flags.context_tokens;
    body["chunking"] = std::move(chunking);
    body["pinned"] = flags.pinned;
    ClientRequest request;
    request.method = "POST";
    request.target = "/v1/documents";
    request.content_type = "application/json";
    request.body = to_text(body);
    auto reply = client_json(flags.client, std::move(request));
    if (!reply.ok()) return complain(reply.status());
    auto job = follow(flags, std::string(reply->as_object().at("job_id").as_string()),
                      !flags.quiet && ::isatty(2));
    if (!job.ok()) return complain(job.status());
    failures += report(job->as_object().at("results").as_array(), part, flags.quiet);
  }
  if (failures > 0)
    return complain(std::to_string(failures) + " of " + std::to_string(all.size()) +
                    " documents were not cached");
  return 0;
}

}  // namespace

void add_ingest_command(CLI::App& app, CommandRun& run) {
  auto flags = std::make_shared<IngestFlags>();
  auto* c = app.add_subcommand(
      "ingest",
      "Cache documents in a running service.\n.txt and .md files become one document each (id: the "
      "file name without ending);\n"
      ".jsonl files hold one document a line: {\"id\", \"title\", \"text\", \"metadata\"}");
  c->add_option("FILE", flags->files, "Files to read")->required();
  add_client_flags(*c, flags->client);
  c->add_option("--max-tokens", flags->max_tokens, "Longest chunk")->capture_default_str();
  c->add_option("--overlap", flags->overlap, "Tokens repeated between chunks")
      ->capture_default_str();
  c->add_option("--context-tokens", flags->context_tokens,
                "Read each chunk behind those before it, in windows of this many tokens; 0: alone")
      ->capture_default_str();
  c->add_flag("--pinned", flags->pinned, "Never evict their cache");
  c->add_flag("-q,--quiet", flags->quiet, "Print failures only");
  c->callback([flags, &run] { run = [flags] { return ingest(*flags); }; });
}

}  // namespace quire
