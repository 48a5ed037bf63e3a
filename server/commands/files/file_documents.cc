#include "server/commands/files/file_documents.h"

#include <fcntl.h>
#include <unistd.h>

#include <boost/json/value.hpp>
#include <cerrno>
#include <cstring>
#include <set>

#include "base/index.h"
#include "base/json_parse.h"
#include "base/sha256.h"
#include "base/utf8.h"
#include "ingest/document/document_id.h"
#include "server/config/config.h"
#include "server/json/document_request.h"
#include "server/json/mark_codec.h"
#include "server/json/text.h"

namespace quire {
namespace json = boost::json;
namespace {

constexpr std::size_t kMaxLinesBytes = std::size_t{1} << 30;
constexpr std::size_t kMostBadLines = 10;  // that an error tells

bool is_lines_of_json(const FoundFile& file) {
  const std::string ending = file.path.extension().string();
  return ending == ".jsonl" || ending == ".ndjson";
}

/// File names need not be UTF-8, but metadata is.
std::string utf8_of(std::string text) {
  for (;;) {
    const auto good = tokenizer_internal::valid_utf8_prefix(text);
    if (good == text.size()) return text;
    text[good] = '?';
  }
}

void add_source(const FoundFile& file, const std::string& hash, json::object& metadata) {
  metadata[kSourceKey] = utf8_of(file.name);
  if (!file.root.empty()) metadata[kSourceRootKey] = utf8_of(file.root.string());
  if (!hash.empty()) metadata[kSourceHashKey] = hash;
}

/// Says in the hash of each document how many the file has: it is stored once all of them are.
void add_number(const std::string& hash, FileContent& content) {
  std::set<std::string> names;  // equal texts without an id become one document
  for (const FileDocument& d : content.documents) {
    const json::value* id = d.body.if_contains("id");
    const json::value* named = id && id->is_string() ? id : d.body.if_contains("text");
    names.insert((named == id ? "i" : "t") + (named ? to_text(*named) : std::string()));
  }
  if (hash.empty() || names.size() < 2) return;
  for (FileDocument& d : content.documents)
    d.body["metadata"].as_object()[kSourceHashKey] = hash + "+" + std::to_string(names.size());
}

Result<FileContent> read_lines(std::string_view text, const FoundFile& file,
                               const std::string& hash) {
  FileContent out;
  std::size_t line_number = 0, num_bad = 0;
  std::string bad;
  const auto refuse = [&](const std::string& why) {
    if (++num_bad <= kMostBadLines)
      bad += (bad.empty() ? "" : "; ") + ("line " + std::to_string(line_number)) + ": " + why;
  };
  for (std::size_t begin = 0; begin < text.size();) {
    const auto end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    ++line_number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    auto value = parse_json(line);
    if (!value.ok()) {
      refuse(value.status().message());
      continue;
    }
    DocumentInput checked;
    if (const auto e = read_document(*value, "document", checked)) {
      refuse(e->message);
      continue;
    }
    if (num_bad > 0) continue;
    json::object body = std::move(value->as_object());
    auto& metadata = body["metadata"];
    if (!metadata.is_object()) metadata = json::object();
    // What the line says itself by `source` stays. The others are this program's own.
    json::object& members = metadata.as_object();
    const json::value* own = members.if_contains(kSourceKey);
    const json::value said = own ? *own : json::value();
    add_source(file, hash, members);
    if (!said.is_null() && said != members[kSourceKey]) {
      members[kSourceFileKey] = members[kSourceKey];
      members[kSourceKey] = said;
    } else {
      members.erase(kSourceFileKey);
    }
    out.documents.push_back({std::move(body), false, true});
  }
  if (num_bad > kMostBadLines)
    bad += "; and " + std::to_string(num_bad - kMostBadLines) + " more of its lines are wrong";
  if (num_bad > 0) return Status::invalid("", file.path.string() + ", " + bad);
  if (out.documents.empty()) return Status::not_found(file.path.string() + ": has no text");
  add_number(hash, out);
  return out;
}

FileContent content_of(std::vector<ReadDocument> read, const FoundFile& file,
                       const std::string& hash) {
  FileContent out;
  for (ReadDocument& d : read) {
    FileDocument document;
    document.markdown = d.markdown;
    document.body["id"] = document_id_of_path(d.part.empty() ? file.name
                                                             : file.name + "/" + d.part);
    document.body["title"] = d.title;
    document.body["text"] = d.text;
    if (!d.marks.empty()) document.body["marks"] = marks_json(d.marks, d.text);
    json::object metadata;
    for (const auto& [key, value] : d.metadata) metadata[key] = value;
    add_source(file, hash, metadata);
    document.body["metadata"] = std::move(metadata);
    out.documents.push_back(std::move(document));
    for (auto& warning : d.warnings) out.warnings.push_back(std::move(warning));
  }
  add_number(hash, out);
  return out;
}

ReaderRequest request_for(const FoundFile& file, const std::string& encoding) {
  ReaderRequest request;
  request.name = file.path.string();
  request.encoding = encoding;
  return request;
}

}  // namespace

Result<FileContent> read_documents_of(const ReaderProcess& reader, const FoundFile& file,
                                      const std::string& encoding, const std::string& hash) {
  if (is_lines_of_json(file)) {
    auto text = read_file(file.path.string(), kMaxLinesBytes);
    if (!text.ok()) return text.status();
    return read_lines(*text, file, hash);
  }
  auto read = reader.read_file(file.path, request_for(file, encoding));
  if (!read.ok()) return read.status();
  return content_of(std::move(*read), file, hash);
}

Result<FileContent> read_documents_of(const ReaderProcess& reader, std::string_view bytes,
                                      const FoundFile& file, const std::string& encoding) {
  if (is_lines_of_json(file)) return read_lines(bytes, file, "");
  auto read = reader.read_bytes(bytes, request_for(file, encoding));
  if (!read.ok()) return read.status();
  return content_of(std::move(*read), file, "");
}

Status check_size(const FoundFile& file) {
  const std::uint64_t most = is_lines_of_json(file) ? kMaxLinesBytes : ReaderLimits().file_bytes;
  if (file.bytes <= most) return {};
  return Status::exhausted(file.path.string() + ": has " + std::to_string(file.bytes >> 20) +
                           " MiB, and files of at most " + std::to_string(most >> 20) +
                           " MiB are read; split it");
}

Result<std::string> hash_of_file(const FoundFile& file, const std::string& settings) {
  const int fd = ::open(file.path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    const std::string message = file.path.string() + ": " + std::strerror(errno);
    return errno == ENOENT ? Status::not_found(message) : Status::io(message);
  }
  Sha256 hash;
  hash.update_field("quire-file").update_field(settings);
  char buffer[64 << 10];
  for (;;) {
    const auto n = ::read(fd, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const std::string message = file.path.string() + ": " + std::strerror(errno);
      ::close(fd);
      return Status::io(message);
    }
    if (n == 0) break;
    hash.update(std::string_view(buffer, to_size(n)));
  }
  ::close(fd);
  return "sha256:" + hash.finish().hex().substr(0, 32);
}

}  // namespace quire
