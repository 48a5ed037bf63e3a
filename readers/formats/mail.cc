#include <gmime/gmime.h>

#include <memory>
#include <set>

#include "base/index.h"
#include "readers/formats/document_builder.h"
#include "readers/formats/format.h"
#include "readers/formats/html.h"
#include "readers/formats/text_encoding.h"

namespace quire {
namespace {

constexpr int kMaxDepth = 8;

struct Unref {
  void operator()(void* object) const { g_object_unref(object); }
};
template <class T>
using Owned = std::unique_ptr<T, Unref>;

/// Returns the bytes of a part without its transfer encoding.
std::string content_of(GMimePart* part) {
  GMimeDataWrapper* content = g_mime_part_get_content(part);
  if (!content) return {};
  const Owned<GMimeStream> memory(g_mime_stream_mem_new());
  if (g_mime_data_wrapper_write_to_stream(content, memory.get()) < 0) return {};
  const GByteArray* bytes = g_mime_stream_mem_get_byte_array(GMIME_STREAM_MEM(memory.get()));
  return bytes && bytes->data ? std::string(reinterpret_cast<const char*>(bytes->data), bytes->len)
                              : std::string();
}

class MessageReader {
 public:
  ReadDocument read(GMimeMessage* message) {
    headers(message);
    part(g_mime_message_get_mime_part(message), 0);
    ReadDocument out = builder_.finish();
    const char* subject = g_mime_message_get_subject(message);
    out.title = subject ? squeezed(subject) : "";
    if (out.title.empty()) out.title = "(no subject)";
    out.metadata = std::move(metadata_);
    for (const auto& name : left_out_)
      out.warnings.push_back("the attachment '" + name + "' is not read");
    for (auto& warning : warnings_) out.warnings.push_back(std::move(warning));
    return out;
  }

 private:
  void header(const char* name, const char* key, std::string value) {
    if (value.empty()) return;
    lines_ += (lines_.empty() ? "" : "\n") + std::string(name) + ": " + value;
    metadata_.emplace_back(key, std::move(value));
  }

  void headers(GMimeMessage* message) {
    header("From", "from", addresses(g_mime_message_get_from(message)));
    header("To", "to", addresses(g_mime_message_get_to(message)));
    header("Cc", "cc", addresses(g_mime_message_get_cc(message)));
    if (GDateTime* date = g_mime_message_get_date(message)) {
      const std::unique_ptr<char, decltype(&g_free)> text(
          g_date_time_format(date, "%Y-%m-%d %H:%M %z"), &g_free);
      if (text) header("Date", "date", text.get());
    }
    if (const char* subject = g_mime_message_get_subject(message))
      if (auto text = squeezed(subject); !text.empty())
        lines_ += (lines_.empty() ? "Subject: " : "\nSubject: ") + text;
    builder_.paragraph(lines_);
    lines_.clear();
  }

  static std::string addresses(InternetAddressList* list) {
    if (!list) return {};
    const std::unique_ptr<char, decltype(&g_free)> text(
        internet_address_list_to_string(list, nullptr, false), &g_free);
    return text ? squeezed(text.get()) : std::string();
  }

  void part(GMimeObject* object, int depth) {
    if (!object) return;
    if (depth > kMaxDepth) {
      warnings_.push_back("parts nested more than 8 levels are left out");
      return;
    }
    if (GMIME_IS_MULTIPART(object)) {
      multipart(GMIME_MULTIPART(object), depth);
    } else if (GMIME_IS_MESSAGE_PART(object)) {
      if (GMimeMessage* inner = g_mime_message_part_get_message(GMIME_MESSAGE_PART(object))) {
        headers(inner);
        part(g_mime_message_get_mime_part(inner), depth + 1);
      }
    } else if (GMIME_IS_PART(object)) {
      leaf(GMIME_PART(object));
    }
  }

  void multipart(GMimeMultipart* multipart, int depth) {
    GMimeContentType* type = g_mime_object_get_content_type(GMIME_OBJECT(multipart));
    if (g_mime_content_type_is_type(type, "multipart", "encrypted")) {
      warnings_.push_back("an encrypted part is not read");
      return;
    }
    const int count = g_mime_multipart_get_count(multipart);
    if (!g_mime_content_type_is_type(type, "multipart", "alternative")) {
      for (int i = 0; i < count; ++i) part(g_mime_multipart_get_part(multipart, i), depth + 1);
      return;
    }
    // One text in several forms: the plain one where it says something, else the last that is a
    // page, which is the best, else the last.
    GMimeObject* chosen = nullptr;
    int best = -1;
    for (int i = 0; i < count; ++i) {
      GMimeObject* one = g_mime_multipart_get_part(multipart, i);
      const int worth = worth_of(one);
      if (worth < best) continue;
      best = worth;
      chosen = one;
    }
    part(chosen, depth + 1);
  }

  static int worth_of(GMimeObject* one) {
    GMimeContentType* type = g_mime_object_get_content_type(one);
    if (g_mime_content_type_is_type(type, "text", "plain") && GMIME_IS_PART(one))
      return content_of(GMIME_PART(one)).find_first_not_of(" \t\r\n") == std::string::npos ? 0 : 3;
    if (g_mime_content_type_is_type(type, "text", "html") || GMIME_IS_MULTIPART(one)) return 2;
    return 1;
  }

  void leaf(GMimePart* part) {
    GMimeContentType* type = g_mime_object_get_content_type(GMIME_OBJECT(part));
    const char* name = g_mime_part_get_filename(part);
    const bool html = g_mime_content_type_is_type(type, "text", "html");
    if (!g_mime_content_type_is_type(type, "text", "*") || g_mime_part_is_attachment(part)) {
      if (!g_mime_content_type_is_type(type, "application", "pgp-signature"))
        left_out_.push_back(name ? name : "without a name");
      return;
    }
    // What a saved page looks like and does is no text.
    if (g_mime_content_type_is_type(type, "text", "css") ||
        g_mime_content_type_is_type(type, "text", "javascript"))
      return;
    const char* charset = g_mime_content_type_get_parameter(type, "charset");
    const std::string bytes = content_of(part);
    if (bytes.empty()) return;
    const auto decoded = decode_text(bytes, {}, charset ? charset : "");
    if (!decoded.ok()) {
      warnings_.push_back("a part " + decoded.status().message());
      return;
    }
    if (html) {
      const auto page = document_of_html(decoded->text);
      if (page.ok())
        builder_.append(*page);
      else
        warnings_.push_back("a part " + page.status().message());
    } else {
      builder_.paragraph(decoded->text);
    }
  }

  DocumentBuilder builder_;
  std::string lines_;
  std::vector<std::pair<std::string, std::string>> metadata_;
  std::vector<std::string> left_out_, warnings_;
};

Result<std::vector<ReadDocument>> read_messages(std::string_view bytes,
                                                const ReaderRequest& request, GMimeFormat format) {
  static const bool initialized = [] {
    g_mime_init();
    return true;
  }();
  (void)initialized;
  const Owned<GMimeStream> stream(g_mime_stream_mem_new_with_buffer(bytes.data(), bytes.size()));
  const Owned<GMimeParser> parser(g_mime_parser_new_with_stream(stream.get()));
  g_mime_parser_set_format(parser.get(), format);
  std::vector<ReadDocument> out;
  std::set<std::string> parts;
  std::size_t broken = 0;
  do {
    const auto before = g_mime_parser_tell(parser.get());
    const Owned<GMimeMessage> message(g_mime_parser_construct_message(parser.get(), nullptr));
    if (!message) {
      ++broken;
      if (g_mime_parser_tell(parser.get()) <= before) break;
      continue;
    }
    if (out.size() >= request.limits.documents)
      return Status::exhausted("holds more than " + std::to_string(request.limits.documents) +
                               " messages; split it");
    ReadDocument document = MessageReader().read(message.get());
    if (format == GMIME_FORMAT_MBOX) {
      // The Message-ID stays when other messages go; a number would not.
      const char* id = g_mime_message_get_message_id(message.get());
      const std::string part = id && *id ? id : "message-" + std::to_string(out.size() + 1);
      document.part = part;
      for (int again = 2; !parts.insert(document.part).second; ++again)
        document.part = part + "-" + std::to_string(again);
    }
    out.push_back(std::move(document));
  } while (format == GMIME_FORMAT_MBOX && !g_mime_parser_eos(parser.get()));
  if (out.empty()) return Status::invalid("", "holds no message");
  if (broken > 0)
    out[0].warnings.push_back(std::to_string(broken) + " messages of the mailbox are damaged");
  return out;
}

}  // namespace

Result<std::vector<ReadDocument>> read_mbox(std::string_view bytes, const ReaderRequest& request) {
  return read_messages(bytes, request, GMIME_FORMAT_MBOX);
}

Result<std::vector<ReadDocument>> read_eml(std::string_view bytes, const ReaderRequest& request) {
  return read_messages(bytes, request, GMIME_FORMAT_MESSAGE);
}

}  // namespace quire
