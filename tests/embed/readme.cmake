# README: a page. Checks that it contains the text of each of FILES. Other tests compile and run these files.
file(READ ${README} readme)
foreach(path ${FILES})
  file(READ ${path} text)
  string(FIND "${readme}" "```cpp\n${text}```" position)
  if(position EQUAL -1)
    message(FATAL_ERROR "${README} does not show ${path} as it is; paste the file between ```cpp and ```")
  endif()
endforeach()
