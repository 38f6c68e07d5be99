"""What everyone may know: errors, reasons, events, settings, places, tensor specs."""
