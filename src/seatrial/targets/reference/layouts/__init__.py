"""refrl trained on several processes in many layouts."""
