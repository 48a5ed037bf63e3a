#include "server/hub/model_reference.h"

#include <algorithm>
#include <array>
#include <map>

namespace quire::hub {
namespace {

constexpr std::string_view kScheme = "hf:";
constexpr std::array<std::string_view, 9> kQuantisations = {
    "Q4_K_M", "Q4_K_S", "Q4_0", "Q5_K_M", "Q5_K_S", "Q6_K", "Q8_0", "F16", "BF16"};
constexpr std::array<std::string_view, 15> kFolderFiles = {"config.json",
                                                           "generation_config.json",
                                                           "tokenizer.json",
                                                           "tokenizer.model",
                                                           "tokenizer_config.json",
                                                           "special_tokens_map.json",
                                                           "added_tokens.json",
                                                           "vocab.json",
                                                           "merges.txt",
                                                           "qwen.tiktoken",
                                                           "chat_template.jinja",
                                                           "chat_template.json",
                                                           "model.safetensors.index.json",
                                                           "quire-card.json",
                                                           "model.safetensors"};

bool is_word(std::string_view s) {
  const auto good = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '-' || c == '_';
  };
  return !s.empty() && s.size() <= 96 && s.front() != '.' && s.front() != '-' &&
         std::all_of(s.begin(), s.end(), good) && s.find("..") == std::string_view::npos;
}

bool is_repo(std::string_view s) {
  const std::size_t slash = s.find('/');
  if (slash == std::string_view::npos) return is_word(s);
  return is_word(s.substr(0, slash)) && is_word(s.substr(slash + 1));
}

/// Returns whether the text is a path that stays within its repository.
bool is_path(std::string_view s) {
  if (s.empty() || s.size() > 512 || s.front() == '/') return false;
  for (std::size_t at = 0; at <= s.size();) {
    const std::size_t end = std::min(s.find('/', at), s.size());
    const std::string_view part = s.substr(at, end - at);
    if (part.empty() || part == "." || part == "..") return false;
    at = end + 1;
  }
  return std::none_of(s.begin(), s.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == '\\' || c == 0x7F;
  });
}

std::string upper(std::string_view s) {
  std::string out(s);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c; });
  return out;
}

/// Returns whether `name` is a separate word of the path: "model-Q4_K_M.gguf", "Q4_K_M/model.gguf".
bool has_quantisation(std::string_view group, std::string_view name) {
  const std::string text = upper(group), wanted = upper(name);
  const auto inside = [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  for (std::size_t at = text.find(wanted); at != std::string::npos;
       at = text.find(wanted, at + 1)) {
    const std::size_t end = at + wanted.size();
    if ((at == 0 || !inside(text[at - 1])) && (end == text.size() || !inside(text[end])))
      return true;
  }
  return false;
}

using Groups = std::map<std::string, std::vector<HubFile>>;

Groups gguf_groups(std::span<const HubFile> files) {
  Groups groups;
  for (const HubFile& f : files) {
    if (!f.path.ends_with(".gguf") || f.path.find("mmproj") != std::string::npos) continue;
    groups[group_of(f.path)].push_back(f);
  }
  for (auto& [name, parts] : groups) {
    std::sort(parts.begin(), parts.end(),
              [](const HubFile& a, const HubFile& b) { return a.path < b.path; });
  }
  return groups;
}

std::string listed(std::vector<std::string> names) {
  std::string out;
  for (std::size_t i = 0; i < names.size() && i < 40; ++i) out += "\n  " + names[i];
  if (names.size() > 40) out += "\n  and " + std::to_string(names.size() - 40) + " more";
  return out;
}

ChosenFiles chosen(const std::vector<HubFile>& parts) {
  return {.files = parts, .model = parts.front().path};
}

Result<ChosenFiles> choose_gguf(const ModelReference& r, const Groups& groups,
                                std::string_view wanted) {
  std::vector<const std::vector<HubFile>*> fits;
  std::vector<std::string> names, all;
  for (const auto& [name, parts] : groups) {
    all.push_back(parts.front().path);
    if (!has_quantisation(name, wanted)) continue;
    fits.push_back(&parts);
    names.push_back(parts.front().path);
  }
  if (fits.size() == 1) return chosen(*fits.front());
  if (fits.empty()) {
    return Status::not_found(
        "hf:" + r.repo + " has no file and no quantisation '" + std::string(wanted) + "'" +
        (all.empty() ? std::string("; it holds no GGUF files") : "; it has:" + listed(all)));
  }
  return Status::not_found("'" + std::string(wanted) + "' fits several files of hf:" + r.repo +
                           "; name one as hf:" + r.repo + ":FILE:" + listed(names));
}

}  // namespace

std::string ModelReference::text() const {
  std::string out = std::string(kScheme) + repo;
  if (revision != "main") out += "@" + revision;
  if (!file.empty()) out += ":" + file;
  return out;
}

std::string group_of(std::string_view path) {
  const std::size_t of = path.rfind("-of-");
  if (of == std::string_view::npos || of < 6 || path.size() != of + 4 + 5 + 5)
    return std::string(path);
  const std::string_view part = path.substr(of - 5, 5), all = path.substr(of + 4, 5);
  const auto digits = [](std::string_view s) {
    return s.find_first_not_of("0123456789") == std::string_view::npos;
  };
  if (path[of - 6] != '-' || !digits(part) || !digits(all)) return std::string(path);
  return std::string(path.substr(0, of - 6)) + ".gguf";
}

bool is_reference(std::string_view text) { return text.starts_with(kScheme); }

bool looks_like_repo(std::string_view text) {
  return std::count(text.begin(), text.end(), '/') == 1 && is_repo(text);
}

Result<ModelReference> parse_reference(std::string_view text) {
  const auto bad = [&](const std::string& what) {
    return Status::invalid("model", "'" + std::string(text.substr(0, 200)) + "' " + what +
                                        "; models of the hub are named hf:org/repo, "
                                        "hf:org/repo:FILE.gguf, hf:org/repo:Q4_K_M or "
                                        "hf:org/repo@revision");
  };
  if (!is_reference(text)) return bad("does not begin with hf:");
  std::string_view rest = text.substr(kScheme.size());
  ModelReference r;
  if (const std::size_t colon = rest.find(':'); colon != std::string_view::npos) {
    r.file = rest.substr(colon + 1);
    rest = rest.substr(0, colon);
    if (!is_path(r.file)) return bad("names no file behind the colon");
  }
  if (const std::size_t at = rest.find('@'); at != std::string_view::npos) {
    r.revision = rest.substr(at + 1);
    rest = rest.substr(0, at);
    if (!is_path(r.revision) || r.revision.find_first_of(" ?#%:@") != std::string::npos)
      return bad("names no revision behind the @");
  }
  r.repo = rest;
  if (!is_repo(rest)) return bad("names no repository");
  return r;
}

Result<ChosenFiles> choose_files(const ModelReference& r, std::span<const HubFile> files) {
  std::vector<HubFile> usable;
  for (const HubFile& f : files) {
    if (is_path(f.path)) usable.push_back(f);
  }
  const Groups groups = gguf_groups(usable);
  if (!r.file.empty()) {
    for (const HubFile& f : usable) {
      if (f.path != r.file) continue;
      const auto group = groups.find(group_of(f.path));
      return chosen(group != groups.end() ? group->second : std::vector<HubFile>{f});
    }
    return choose_gguf(r, groups, r.file);
  }
  const auto in_root = [&](std::string_view name) {
    return std::any_of(usable.begin(), usable.end(),
                       [&](const HubFile& f) { return f.path == name; });
  };
  const auto weights = [](const HubFile& f) {
    return f.path.find('/') == std::string::npos && f.path.starts_with("model") &&
           f.path.ends_with(".safetensors");
  };
  if (in_root("config.json") && std::any_of(usable.begin(), usable.end(), weights)) {
    ChosenFiles out;
    for (const HubFile& f : usable) {
      const bool named = std::find(kFolderFiles.begin(), kFolderFiles.end(), f.path) !=
                         kFolderFiles.end();
      const bool licence = f.path.find('/') == std::string::npos && f.path.starts_with("LICENSE");
      if (named || licence || weights(f)) out.files.push_back(f);
    }
    return out;
  }
  if (groups.size() == 1) return chosen(groups.begin()->second);
  for (const std::string_view quantisation : kQuantisations) {
    std::vector<const std::vector<HubFile>*> fits;
    for (const auto& [name, parts] : groups) {
      if (has_quantisation(name, quantisation)) fits.push_back(&parts);
    }
    if (fits.size() == 1) return chosen(*fits.front());
    if (fits.size() > 1) break;  // several models: the request must name one
  }
  std::vector<std::string> names;
  for (const auto& [name, parts] : groups) names.push_back(parts.front().path);
  if (names.empty()) {
    return Status::not_found("hf:" + r.repo + " at " + r.revision +
                             " holds no model this build can read: neither config.json with "
                             "model*.safetensors in its root, nor a .gguf file");
  }
  return Status::not_found("hf:" + r.repo + " holds several models; name one as hf:" + r.repo +
                           ":FILE:" + listed(names));
}

}  // namespace quire::hub
