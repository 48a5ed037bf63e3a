// Generates shell completion and a manual page from the commands themselves.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "server/commands/commands.h"
#include "server/config/config.h"
#include "server/support/version.h"

namespace quire {
namespace {

/// A command, and its name preceded by those of its parents ("model get").
struct Found {
  const CLI::App* command;
  std::string path;
};

void collect(const CLI::App& command, const std::string& path, std::vector<Found>& out) {
  out.push_back({&command, path});
  for (const CLI::App* sub : command.get_subcommands({})) {
    collect(*sub, path.empty() ? sub->get_name() : path + " " + sub->get_name(), out);
  }
}

/// Returns the names a user may type next: subcommands and options.
std::string words_of(const CLI::App& command) {
  std::string out;
  for (const CLI::App* sub : command.get_subcommands({})) out += sub->get_name() + " ";
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) out += "--" + name + " ";
    for (const std::string& name : option->get_snames()) out += "-" + name + " ";
  }
  return out;
}

/// Returns the settings of the service as flags.
std::string setting_flags() {
  std::string out;
  for (const Setting& s : setting_table()) out += "--" + s.name() + "= ";
  return out;
}

int print_bash(const CLI::App& app) {
  std::vector<Found> all;
  collect(app, "", all);
  std::printf(
      "# Completion of quire for bash: quire completion bash >/etc/bash_completion.d/quire\n"
      "_quire() {\n"
      "  local word=\"${COMP_WORDS[COMP_CWORD]}\" path= i names\n"
      "  for ((i = 1; i < COMP_CWORD; ++i)); do\n"
      "    case \"$path ${COMP_WORDS[i]}\" in\n");
  for (const Found& f : all) {
    if (!f.path.empty())
      std::printf("      ' %s') path=' %s' ;;\n", f.path.c_str(), f.path.c_str());
  }
  std::printf("    esac\n  done\n  case \"$path\" in\n");
  for (const Found& f : all) {
    const std::string more = f.path == "serve" ? setting_flags() : "";
    std::printf("    '%s') names='%s' ;;\n", f.path.empty() ? "" : (" " + f.path).c_str(),
                (words_of(*f.command) + more).c_str());
  }
  std::printf(
      "  esac\n"
      "  mapfile -t COMPREPLY < <(compgen -W \"$names\" -- \"$word\")\n"
      "  [ \"${#COMPREPLY[@]}\" = 1 ] && [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace\n"
      "  [ \"${#COMPREPLY[@]}\" != 0 ] || mapfile -t COMPREPLY < <(compgen -f -- \"$word\")\n"
      "}\n"
      "complete -F _quire quire\n");
  return 0;
}

/// Escapes text for troff.
std::string escaped(const std::string& text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool line_start = i == 0 || text[i - 1] == '\n';
    if (line_start && (text[i] == '.' || text[i] == '\'')) out += "\\&";
    if (text[i] == '\\')
      out += "\\e";
    else if (text[i] == '-')
      out += "\\-";
    else
      out += text[i];
  }
  return out;
}

int print_manual(const CLI::App& app) {
  std::vector<Found> all;
  collect(app, "", all);
  std::printf(".TH QUIRE 1 \"\" \"quire %s\"\n.SH NAME\nquire \\- %s\n",
              std::string(version()).c_str(),
              escaped("context cache for retrieval-augmented generation").c_str());
  for (const Found& f : all) {
    const std::string title = f.path.empty() ? "quire" : "quire " + f.path;
    // App::help() would write the help of the command that runs in the place of its parents'.
    const std::string help = f.command->get_formatter()->make_help(f.command, title,
                                                                   CLI::AppFormatMode::Normal);
    std::printf(".SH \"%s\"\n.nf\n%s\n.fi\n", title.c_str(), escaped(help).c_str());
  }
  std::printf(".SH SETTINGS OF THE SERVICE\n.nf\n%s\n.fi\n",
              escaped(config_to_toml(Config(), true)).c_str());
  return 0;
}

}  // namespace

void add_completion_command(CLI::App& app, CommandRun& run) {
  auto* c = app.add_subcommand("completion", "Completion for a shell, and the manual page");
  c->require_subcommand(1);
  c->add_subcommand("bash",
                    "A script for bash: quire completion bash >/etc/bash_completion.d/quire")
      ->callback([&app, &run] { run = [&app] { return print_bash(app); }; });
  c->add_subcommand("man", "The manual page: quire completion man | man -l -")
      ->callback([&app, &run] { run = [&app] { return print_manual(app); }; });
}

}  // namespace quire
