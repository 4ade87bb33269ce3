# The header with the files that a page consists of: template, style, and the script, which is D3 and the
# modules beside this file.
set(unpacked ${PROJECT_SOURCE_DIR}/build/node-d3/usr/share)  # by fetch_d3 of sim/packages.sh
find_file(KVBOUND_D3 d3.min.js PATHS /usr/share/nodejs/d3/dist ${unpacked}/nodejs/d3/dist DOC "D3 5, minified (Debian's node-d3)")
find_file(KVBOUND_D3_LICENSE copyright PATHS /usr/share/doc/node-d3 ${unpacked}/doc/node-d3 DOC "D3's licence text")
if(NOT KVBOUND_D3 OR NOT KVBOUND_D3_LICENSE)
  message(FATAL_ERROR "D3 is missing: install Debian's node-d3, or run sim/quickstart.sh, which fetches that file alone")
endif()
set(page_folder ${CMAKE_CURRENT_LIST_DIR})
set(page_files page.html page.css data.js axes.js figure.js saving.js lines.js whiskers.js scatter.js heatmap.js dots.js runs.js
  sentences.js headlines.js answer.js page.js)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${KVBOUND_D3} ${KVBOUND_D3_LICENSE})

function(kvbound_page_text variable)
  set(text "")
  foreach(file IN LISTS ARGN)
    file(READ ${file} contents)
    string(APPEND text "${contents}\n")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  endforeach()
  set(${variable} "${text}" PARENT_SCOPE)
endfunction()

list(TRANSFORM page_files PREPEND ${page_folder}/)
list(POP_FRONT page_files page_template page_style)
kvbound_page_text(PAGE_TEMPLATE ${page_template})
kvbound_page_text(PAGE_STYLE ${page_style})
kvbound_page_text(D3_LICENSE ${KVBOUND_D3_LICENSE})
kvbound_page_text(D3_SCRIPT ${KVBOUND_D3})
kvbound_page_text(PAGE_SCRIPT ${page_files})
string(REGEX MATCH "v([0-9]+[.][0-9.]+)" _ "${D3_SCRIPT}")
set(D3_VERSION "${CMAKE_MATCH_1}")
if(NOT D3_VERSION MATCHES "^5[.]")
  message(FATAL_ERROR "${KVBOUND_D3}: is D3 '${D3_VERSION}'; expected version 5 (Debian's node-d3)")
endif()
string(REGEX MATCH "License: ([A-Za-z0-9.-]+)" _ "${D3_LICENSE}")
set(D3_LICENSE_NAME "${CMAKE_MATCH_1}")
file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/generated/page_files.hpp @ONLY CONTENT [[
#pragma once
#include <string_view>
namespace kvbound::sim {
inline constexpr std::string_view kD3Version = "@D3_VERSION@";
inline constexpr std::string_view kD3License = "@D3_LICENSE_NAME@";
inline constexpr std::string_view kPageTemplate = R"kvbound(@PAGE_TEMPLATE@)kvbound";
inline constexpr std::string_view kPageStyle = R"kvbound(@PAGE_STYLE@)kvbound";
// Not constexpr: it is longer than what compilers count at compile time.
inline const std::string_view kPageScript = R"kvbound('use strict';
/* D3's licence:
@D3_LICENSE@*/
@D3_SCRIPT@
@PAGE_SCRIPT@)kvbound";
}  // namespace kvbound::sim
]])
