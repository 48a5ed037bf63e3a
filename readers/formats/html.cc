#include "readers/formats/html.h"

#include <libxml/HTMLparser.h>
#include <libxml/SAX2.h>
#include <libxml/parserInternals.h>
#include <libxml/tree.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <climits>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/index.h"
#include "readers/formats/document_builder.h"
#include "readers/formats/format.h"
#include "readers/formats/text_encoding.h"

namespace quire {
namespace {

std::string_view name_of(const xmlNode* node) {
  return node->name ? reinterpret_cast<const char*>(node->name) : "";
}

bool one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string attribute(const xmlNode* node, const char* name) {
  const std::unique_ptr<xmlChar, void (*)(void*)> value(
      xmlGetProp(node, reinterpret_cast<const xmlChar*>(name)), [](void* p) { xmlFree(p); });
  return value ? reinterpret_cast<const char*>(value.get()) : "";
}

bool has_attribute(const xmlNode* node, const char* name) {
  return xmlHasProp(node, reinterpret_cast<const xmlChar*>(name)) != nullptr;
}

/// Never text for readers.
bool is_machinery(std::string_view name) {
  return one_of(
      name, {"script", "style", "noscript", "template", "head", "iframe", "object", "embed", "svg",
             "canvas", "audio", "video", "annotation", "annotation-xml", "map"});
}

/// Text around the text: menus, forms, what is hidden.
bool is_surrounding(const xmlNode* node, std::string_view name, bool in_article) {
  if (one_of(name, {"nav", "button", "select", "textarea", "input", "dialog", "menu"})) return true;
  if (name == "footer" && !in_article) return true;
  if (!node->properties) return false;
  if (has_attribute(node, "hidden") || attribute(node, "aria-hidden") == "true") return true;
  return one_of(attribute(node, "role"),
                {"navigation", "banner", "contentinfo", "search", "menu", "menubar", "dialog"});
}

bool is_block(std::string_view name) {
  return one_of(
      name,
      {"p",       "div",  "section",    "article", "main",       "header",  "footer", "aside",
       "body",    "html", "blockquote", "figure",  "figcaption", "address", "dl",     "dt",
       "dd",      "ul",   "ol",         "table",   "thead",      "tbody",   "tfoot",  "tr",
       "caption", "hr",   "fieldset",   "details", "summary",    "center",  "nav",    "form"});
}

bool is_heading(std::string_view name) {
  return name.size() == 2 && name[0] == 'h' && name[1] >= '1' && name[1] <= '6';
}

/// Returns what follows `node` in the order of the text, below `root` only. Null: nothing does.
/// Nothing here recurses, because hostile pages nest without end.
const xmlNode* next_within(const xmlNode* node, const xmlNode* root, bool skip_children = false) {
  if (!skip_children && node->children && node->type == XML_ELEMENT_NODE) return node->children;
  while (node && node != root && !node->next) node = node->parent;
  return !node || node == root ? nullptr : node->next;
}

/// Whether a form holds a page, as those of ASP.NET do, or only what is filled in.
bool is_page(const xmlNode* form) {
  constexpr std::size_t kMostOfAForm = 500;  // bytes of text
  std::size_t text = 0;
  for (const xmlNode* node = next_within(form, form); node;) {
    const bool other = node->type == XML_ELEMENT_NODE &&
                       (is_machinery(name_of(node)) || is_surrounding(node, name_of(node), false));
    if (node->type == XML_TEXT_NODE && node->content) {
      text += squeezed(reinterpret_cast<const char*>(node->content)).size();
      if (text > kMostOfAForm) return true;
    }
    node = next_within(node, form, other);
  }
  return false;
}

/// Whether a row of a table is one line of text: several cells with little in each. Other tables
/// are there for the layout.
bool is_data(const xmlNode* row) {
  constexpr std::size_t kMostOfARow = 2000;  // bytes of text
  std::size_t cells = 0, text = 0;
  for (const xmlNode* node = next_within(row, row); node; node = next_within(node, row)) {
    if (node->type == XML_TEXT_NODE && node->content)
      text += squeezed(reinterpret_cast<const char*>(node->content)).size();
    if (text > kMostOfARow) return false;
    if (node->type != XML_ELEMENT_NODE) continue;
    const auto name = name_of(node);
    if (is_heading(name) || one_of(name, {"table", "tr", "pre"})) return false;
    if (node->parent == row && one_of(name, {"td", "th"})) ++cells;
  }
  return cells > 1;
}

/// Returns a formula as it was typed; empty: the page does not say.
std::string typed_formula(const xmlNode* math) {
  std::string text = attribute(math, "alttext");
  for (const xmlNode* node = math->children; node && text.empty(); node = node->next) {
    if (node->type != XML_ELEMENT_NODE || name_of(node) != "semantics") continue;
    for (const xmlNode* note = node->children; note && text.empty(); note = note->next) {
      if (note->type != XML_ELEMENT_NODE || name_of(note) != "annotation" || !note->children ||
          attribute(note, "encoding").find("tex") == std::string::npos)
        continue;
      if (note->children->content) text = reinterpret_cast<const char*>(note->children->content);
    }
  }
  text = squeezed(text);
  constexpr std::string_view kDisplay = "{\\displaystyle ";
  if (text.starts_with(kDisplay) && text.ends_with('}'))
    text = text.substr(kDisplay.size(), text.size() - kDisplay.size() - 1);
  return text;
}

/// Returns a heading without the sign of the link to itself that many generators add.
std::string without_anchor(std::string title) {
  for (bool again = true; again;) {
    again = false;
    for (const std::string_view sign : {" #", "\xc2\xb6", "\xe2\x80\x8b", "\xef\x83\x81", " "}) {
      if (!title.ends_with(sign)) continue;
      title.resize(title.size() - sign.size());
      again = true;
    }
  }
  return title;
}

/// Walks the tree without recursion.
class Walker {
 public:
  explicit Walker(bool keep_surroundings) : keep_surroundings_(keep_surroundings) {}

  ReadDocument walk(const xmlNode* root) {
    const xmlNode* node = root;
    bool down = true;
    while (node) {
      if (down && enter(node) && node->children && node->type == XML_ELEMENT_NODE) {
        node = node->children;
        continue;
      }
      leave(node);
      if (node == root) break;
      if (node->next) {
        node = node->next;
        down = true;
      } else {
        node = node->parent;
        down = false;
      }
    }
    flush();
    ReadDocument out = builder_.finish();
    out.title = first_heading_;
    return out;
  }

 private:
  enum class Line : unsigned char { kNone, kItem, kRow };

  /// Returns whether the node's children are to be visited.
  bool enter(const xmlNode* node) {
    entered_ = node;
    if (node->type == XML_TEXT_NODE || node->type == XML_CDATA_SECTION_NODE) {
      if (node->content) add(reinterpret_cast<const char*>(node->content));
      return false;
    }
    if (node->type != XML_ELEMENT_NODE) return false;
    const auto name = name_of(node);
    if (is_machinery(name)) return false;
    if (skipped(node, name)) {
      flush();
      return false;
    }
    if (name == "article" || name == "main") ++articles_;
    if (name == "form") ++forms_;
    if (name == "br") {
      text_ += line_ ? ' ' : '\n';
    } else if (name == "pre") {
      flush();
      ++pre_;
    } else if (name == "ol" || name == "ul") {
      flush();
      numbers_.push_back(name == "ol" ? number(attribute(node, "start"), 1) : -1);
    } else if (name == "li") {
      flush();
      if (line_ && follows_an_item(node)) text_ = squeezed(text_) + "; ";
      item_ = bullet(node);
    } else if (name == "td" || name == "th") {
      if (line_ && node->parent == line_)
        cells_.push_back(squeezed(std::exchange(text_, {})));
      else
        flush();
    } else if (name == "tr") {
      flush();
      row_ = true;
      if (is_data(node)) line_ = node;
    } else if (name == "math") {
      const std::string formula = typed_formula(node);
      add(formula);
      return formula.empty();
    } else if (is_heading(name) || is_block(name)) {
      flush();
    }
    return true;
  }

  void leave(const xmlNode* node) {
    if (node->type != XML_ELEMENT_NODE) return;
    const auto name = name_of(node);
    // What was not visited has nothing to end.
    if (entered_ == node && (is_machinery(name) || skipped(node, name))) return;
    if ((name == "article" || name == "main") && articles_ > 0) --articles_;
    if (name == "form") --forms_;
    if (node == line_) return end_line();
    if (is_heading(name)) {
      const std::string title = without_anchor(squeezed(text_));
      text_.clear();
      item_.clear();
      row_ = false;
      if (title.empty()) return;
      if (name == "h1" && first_heading_.empty()) first_heading_ = title;
      builder_.heading(name[1] - '0', title);
      last_ = Line::kNone;
    } else if (name == "pre" && pre_ > 0) {
      flush();
      --pre_;
    } else if (name == "li" || is_block(name)) {
      flush();
    }
    if (name == "ol" || name == "ul") numbers_.pop_back();
  }

  /// Ends a row that is a line of text.
  void end_line() {
    line_ = nullptr;
    item_.clear();
    row_ = false;
    cells_.push_back(squeezed(std::exchange(text_, {})));
    // What is before the first cell belongs to none.
    if (cells_.front().empty()) cells_.erase(cells_.begin());
    if (builder_.row(cells_, last_ != Line::kRow)) last_ = Line::kRow;
    cells_.clear();
  }

  static bool follows_an_item(const xmlNode* item) {
    const xmlNode* node = item->prev;
    while (node && node->type != XML_ELEMENT_NODE) node = node->prev;
    return node && name_of(node) == "li";
  }

  bool skipped(const xmlNode* node, std::string_view name) const {
    if (keep_surroundings_) return false;
    if (name == "form" && forms_ == 0 && !is_page(node)) return true;
    return is_surrounding(node, name, articles_ > 0);
  }

  static int number(const std::string& text, int otherwise) {
    constexpr int kMost = 1'000'000;
    int out = otherwise;
    (void)std::from_chars(text.data(), text.data() + text.size(), out);
    return std::clamp(out, 0, kMost);
  }

  /// Returns what an item of a list begins with.
  std::string bullet(const xmlNode* item) {
    if (numbers_.empty() || numbers_.back() < 0) return "- ";
    const int n = number(attribute(item, "value"), numbers_.back());
    numbers_.back() = n + 1;
    return std::to_string(n) + ". ";
  }

  void add(std::string_view text) {
    if (pre_ > 0) {
      text_ += text;
      return;
    }
    // A line break in the source is a space; one from <br> is kept.
    for (std::size_t i = 0; i < text.size(); ++i) {
      const char c = text[i];
      const bool unbroken = text.substr(i, 2) == "\xc2\xa0";
      if (unbroken) ++i;
      if (!unbroken && c != ' ' && c != '\t' && c != '\n' && c != '\r' && c != '\f')
        text_ += c;
      else if (!text_.empty() && text_.back() != ' ' && text_.back() != '\n')
        text_ += ' ';
    }
  }

  /// Ends a paragraph; within a line of a table only a word.
  void flush() {
    if (line_) {
      if (!text_.empty() && text_.back() != ' ') text_ += ' ';
      return;
    }
    std::string text = std::exchange(text_, {});
    const std::string item = std::exchange(item_, {});
    const bool row = std::exchange(row_, false);
    const auto begin = text.find_first_not_of(pre_ > 0 ? "\n\r" : " \n\r\t");
    if (begin == std::string::npos) {
      item_ = item;  // <li><p>text</p></li>
      row_ = row;
      return;
    }
    text = text.substr(begin, text.find_last_not_of(" \n\r\t") - begin + 1);
    if (pre_ > 0) {
      const std::string fence = text.find("```") == std::string::npos ? "```" : "~~~~";
      builder_.paragraph(fence + "\n" + text + "\n" + fence);
      last_ = Line::kNone;
      return;
    }
    // In Markdown such a line would be a heading.
    std::string escaped;
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '#' && (i == 0 || text[i - 1] == '\n')) escaped += '\\';
      escaped += text[i];
    }
    escaped.insert(0, item);
    const Line line = !item.empty() ? Line::kItem : row ? Line::kRow : Line::kNone;
    if (line != Line::kNone && line == last_)
      builder_.line(escaped);
    else
      builder_.paragraph(escaped);
    last_ = line;
  }

  const bool keep_surroundings_;
  DocumentBuilder builder_;
  std::string text_, first_heading_;
  const xmlNode* entered_ = nullptr;
  const xmlNode* line_ = nullptr;   // the row that becomes one line of text
  std::vector<std::string> cells_;  // of that row
  int pre_ = 0, articles_ = 0, forms_ = 0;
  std::vector<int> numbers_;  // of the next item in each list that is open; below 0: it has none
  std::string item_;          // what the next paragraph begins with, as it is an item
  bool row_ = false;
  Line last_ = Line::kNone;  // what the last paragraph was
};

const xmlNode* find(const xmlNode* root, std::string_view name) {
  for (const xmlNode* node = root; node; node = next_within(node, root))
    if (node->type == XML_ELEMENT_NODE && name_of(node) == name) return node;
  return nullptr;
}

constexpr int kMostLevels = 4096;

void start_element(void* context, const xmlChar* name, const xmlChar** attributes) {
  auto* const parser = static_cast<xmlParserCtxt*>(context);
  if (parser->nodeNr >= kMostLevels) return xmlStopParser(parser);
  xmlSAX2StartElement(context, name, attributes);
}

}  // namespace

Result<ReadDocument> document_of_html(std::string_view utf8) {
  if (utf8.size() > INT_MAX / 2) return Status::exhausted("the page is too large");
  const std::unique_ptr<htmlParserCtxt, decltype(&htmlFreeParserCtxt)> parser(htmlNewParserCtxt(),
                                                                              &htmlFreeParserCtxt);
  if (!parser) return Status::exhausted("needs more memory than it may take");
  // The library alone would end at 256 levels and drop the rest: old pages and mails leave as many
  // elements open. What an end tag costs grows with the level, so there is a limit all the same.
  parser->options |= XML_PARSE_HUGE;
  parser->sax->startElement = &start_element;
  const std::unique_ptr<xmlDoc, decltype(&xmlFreeDoc)> page(
      htmlCtxtReadMemory(parser.get(), utf8.data(), static_cast<int>(utf8.size()), nullptr, "UTF-8",
                         HTML_PARSE_RECOVER | HTML_PARSE_NOERROR | HTML_PARSE_NOWARNING |
                             HTML_PARSE_NONET | HTML_PARSE_COMPACT),
      &xmlFreeDoc);
  // What was parsed until then would be a text that ends early.
  if (parser->errNo == XML_ERR_NO_MEMORY)
    return Status::exhausted("needs more memory than it may take; split it");
  if (parser->disableSAX != 0)
    return Status::invalid("", "has elements in more than " + std::to_string(kMostLevels) +
                                   " levels; close them, or convert the page to text");
  const xmlNode* root = page ? xmlDocGetRootElement(page.get()) : nullptr;
  if (!root) return Status::invalid("", "has no text");
  ReadDocument out = Walker(false).walk(root);
  if (out.text.empty()) {
    out = Walker(true).walk(root);
    if (!out.text.empty())
      out.warnings.push_back("the page has only menus and forms; they are read");
  }
  if (const xmlNode* title = find(root, "title")) {
    const std::unique_ptr<xmlChar, void (*)(void*)> text(xmlNodeGetContent(title),
                                                         [](void* p) { xmlFree(p); });
    if (text)
      if (auto plain = squeezed(reinterpret_cast<const char*>(text.get())); !plain.empty())
        out.title = std::move(plain);
  }
  return out;
}

std::string declared_html_encoding(std::string_view bytes) {
  std::string head(bytes.substr(0, 2048));
  for (char& c : head) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const std::string_view key : {"charset=", "encoding="}) {
    auto at = head.find(key);
    if (at == std::string::npos) continue;
    at += key.size();
    while (at < head.size() && (head[at] == '"' || head[at] == '\'')) ++at;
    const auto end = head.find_first_of("\"' ;>/?", at);
    if (end != std::string::npos && end - at <= 40) return head.substr(at, end - at);
  }
  return {};
}

Result<std::vector<ReadDocument>> read_html(std::string_view bytes, const ReaderRequest& request) {
  QUIRE_ASSIGN_OR_RETURN(DecodedText decoded,
                         decode_text(bytes, request.encoding, declared_html_encoding(bytes)));
  QUIRE_ASSIGN_OR_RETURN(ReadDocument document, document_of_html(decoded.text));
  // A page that names its encoding was not guessed.
  if (declared_html_encoding(bytes).empty())
    document.warnings.insert(document.warnings.end(), decoded.warnings.begin(),
                             decoded.warnings.end());
  return std::vector<ReadDocument>{std::move(document)};
}

}  // namespace quire
