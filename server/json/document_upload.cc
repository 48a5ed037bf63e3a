#include "server/json/document_upload.h"

#include <algorithm>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>

#include "base/json_parse.h"
#include "server/http/http_message.h"

namespace quire {
namespace json = boost::json;

constexpr std::size_t kReadBytes = 256 << 10;

Result<bool> NdjsonReader::next_line() {
  std::size_t seen = at_;
  for (;;) {
    const auto newline = buffer_.find('\n', seen);
    if (newline != std::string::npos) {
      line_ = std::string_view(buffer_).substr(at_, newline - at_);
      at_ = newline + 1;
      return true;
    }
    buffer_.erase(0, std::exchange(at_, 0));
    seen = buffer_.size();
    buffer_.resize(seen + kReadBytes);
    auto n = source_(std::span(buffer_).subspan(seen));
    buffer_.resize(seen + (n.ok() ? *n : 0));
    if (!n.ok()) return n.status();
    if (*n > 0) continue;
    line_ = buffer_;  // the last line may lack its newline
    at_ = buffer_.size();
    return !buffer_.empty();
  }
}

std::optional<JsonError> NdjsonReader::next(std::optional<DocumentInput>& out) {
  out.reset();
  for (;;) {
    const auto more = next_line();
    if (!more.ok()) return JsonError{"storage_unavailable", more.status().message(), ""};
    if (!*more) return std::nullopt;
    ++line_number_;
    if (line_.find_first_not_of(" \t\r") != std::string_view::npos) break;
  }
  const std::string where = "line " + std::to_string(line_number_) + " of the body: ";
  const std::string path = "documents[" + std::to_string(num_documents_) + "]";
  auto value = parse_json(line_, kOutsideJson);
  if (!value.ok()) return JsonError{"invalid_json", where + value.status().message(), path};
  DocumentInput input;
  if (auto e = read_document(*value, path, input)) {
    e->message = where + e->message;
    return e;
  }
  ++num_documents_;
  out = std::move(input);
  return std::nullopt;
}

std::string without_byte_order_mark(std::string_view text) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  return std::string(text);
}

std::optional<JsonError> read_form(
    std::string_view body, const std::string& boundary,
    const std::function<std::optional<JsonError>(const FormPart&)>& take) {
  const auto wrong = [](std::string message, std::string param = {}) {
    return JsonError{"invalid_value", std::move(message), std::move(param)};
  };
  if (boundary.empty() || boundary.size() > 70)
    return wrong("Content-Type lacks its boundary", "Content-Type");
  const std::string mark = "--" + boundary;
  auto at = body.find(mark);
  if (at == std::string_view::npos) return wrong("the multipart body does not hold its boundary");
  for (;;) {
    at += mark.size();
    if (body.substr(at, 2) == "--") return std::nullopt;
    const auto head_end = body.find("\r\n\r\n", at);
    if (head_end == std::string_view::npos)
      return wrong("a part of the multipart body has no end of its headers");
    const auto next = body.find("\r\n" + mark, head_end + 2);
    if (next == std::string_view::npos)
      return wrong("a part of the multipart body is not closed by the boundary");
    const std::string_view head = body.substr(at, head_end - at);
    const auto content_begin = head_end + 4;
    std::string disposition;
    for (std::size_t i = 0; i < head.size();) {
      const auto end = std::min(head.find("\r\n", i), head.size());
      const auto text = head.substr(i, end - i);
      if (text.size() > 20 && iequals(text.substr(0, 20), "content-disposition:"))
        disposition = text.substr(20);
      i = end + 2;
    }
    auto name = header_parameter(disposition, "name");
    if (!name) return wrong("a part of the multipart body has no name");
    FormPart part{.name = std::move(*name),
                  .file = header_parameter(disposition, "filename"),
                  .content = next >= content_begin
                                 ? body.substr(content_begin, next - content_begin)
                                 : std::string_view()};
    if (auto error = take(part)) return error;
    at = next + 2;
  }
}

std::optional<JsonError> read_multipart(std::string_view body, const std::string& boundary,
                                        std::size_t max_documents, DocumentBatch& out) {
  const auto wrong = [](std::string message, std::string param = {}) {
    return JsonError{"invalid_value", std::move(message), std::move(param)};
  };
  const auto too_many = [&] {
    return wrong("documents has more than the " + std::to_string(max_documents) +
                     " items that are taken in one call",
                 "documents");
  };
  DocumentInput form;  // members of a single document given as fields
  bool have_form = false;
  auto wrong_part = read_form(
      body, boundary, [&](const FormPart& part) -> std::optional<JsonError> {
        const std::string& name = part.name;
        std::string content(part.content);
        std::optional<JsonError> error;
        if (part.file) {
          if (out.documents.size() >= max_documents) return too_many();
          if (part.file->empty()) return wrong("a file of the form has no name", name);
          out.files.push_back({out.documents.size(), *part.file});
          out.documents.emplace_back();
          out.documents.back().text = std::move(content);
        } else if (name == "id") {
          form.id = std::move(content);
          have_form = true;
        } else if (name == "title") {
          form.title = std::move(content);
          have_form = true;
        } else if (name == "metadata") {
          form.metadata_json = std::move(content);
          have_form = true;
        } else if (name == "text") {
          if (out.documents.size() >= max_documents) return too_many();
          out.documents.emplace_back();
          out.documents.back().text = std::move(content);
        } else if (!read_option(name, content, out.options, error)) {
          return JsonError{"unknown_field", "unknown form field '" + name.substr(0, 128) + "'",
                           name.substr(0, 128)};
        }
        out.chosen_strategy = out.chosen_strategy || name == "strategy";
        return error;
      });
  if (wrong_part) return wrong_part;
  if (out.documents.empty()) return wrong("the form has no file and no 'text' field", "documents");
  if (have_form && out.documents.size() != 1)
    return wrong("id, title and metadata belong to one document; send one file with them", "id");
  if (have_form) {
    auto& d = out.documents[0];
    if (form.id) d.id = form.id;
    if (!form.title.empty()) d.title = form.title;
    if (!form.metadata_json.empty()) d.metadata_json = form.metadata_json;
  }
  out.options.in_batch = out.documents.size() != 1;
  return std::nullopt;
}

std::optional<JsonError> take_files_as_text(DocumentBatch& batch) {
  for (const UploadedFile& file : batch.files) {
    DocumentInput& input = batch.documents[file.index];
    input.text = without_byte_order_mark(input.text.value_or(""));
    if (invalid_utf8_at(*input.text))
      return JsonError{"unsupported_media_type",
                       "the file '" + file.name.substr(0, 256) +
                           "' is not UTF-8 text, and this service has no quire-reader beside it, "
                           "which reads other files",
                       "file"};
    if (input.title.empty()) input.title = file.name;
    if (!input.metadata_json.empty()) continue;
    json::object metadata;
    metadata["filename"] = file.name;
    input.metadata_json = json::serialize(metadata);
  }
  batch.files.clear();
  return std::nullopt;
}

std::optional<JsonError> read_multipart_put(std::string_view body, const std::string& boundary,
                                            const std::string& id, DocumentBatch& out) {
  if (auto e = read_multipart(body, boundary, 2, out)) return e;
  if (out.documents.size() != 1)
    return JsonError{"invalid_value", "PUT takes one document; send one file, or use POST",
                     "documents"};
  if (auto& own = out.documents[0].id; own && *own != id)
    return JsonError{"invalid_value", "id is not the one in the path; leave it out", "id"};
  out.documents[0].id = id;
  return std::nullopt;
}

}  // namespace quire
