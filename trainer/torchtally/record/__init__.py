"""What happened in a job: read from the lines that its pods print, whatever reads or shows them."""
