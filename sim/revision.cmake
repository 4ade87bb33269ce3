cmake_minimum_required(VERSION 3.25)
# Writes OUTPUT, a header with version, source revision and compiler, if its contents
# changed. Runs at every build.
set(revision unknown)
find_package(Git QUIET)
if(Git_FOUND)
  execute_process(COMMAND ${GIT_EXECUTABLE} -C ${SOURCE_DIR} rev-parse --show-prefix
                  OUTPUT_VARIABLE prefix RESULT_VARIABLE outside OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(outside EQUAL 0 AND prefix STREQUAL "")
    execute_process(COMMAND ${GIT_EXECUTABLE} -C ${SOURCE_DIR} describe --always --dirty --abbrev=12
                    OUTPUT_VARIABLE described RESULT_VARIABLE failed OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(failed EQUAL 0 AND NOT described STREQUAL "")
      set(revision ${described})
    endif()
  endif()
endif()
file(CONFIGURE OUTPUT ${OUTPUT} @ONLY CONTENT
"#pragma once

#define KVBOUND_VERSION \"@VERSION@\"
#define KVBOUND_REVISION \"@revision@\"
#define KVBOUND_COMPILER \"@COMPILER@\"
")
